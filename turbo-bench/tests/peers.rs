//! The scripts of the other engines, as far as they need none of them.

#![expect(clippy::unwrap_used, reason = "the lint spares functions marked as tests, and not their helpers")]

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// What a program prints that may import the scripts, and whose argument is a folder; none where there is no Python.
fn python(program: &str, folder: &Path) -> Option<String> {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers");
    let mut python = Command::new("python3");
    python.arg("-c").arg(program).arg(folder).stderr(Stdio::inherit());
    let Ok(done) = python.env("PYTHONPATH", peers).env("PYTHONDONTWRITEBYTECODE", "1").output() else {
        eprintln!("skipped: there is no python3");
        return None;
    };
    assert!(done.status.success(), "{program}");
    Some(String::from_utf8(done.stdout).unwrap())
}

#[test]
fn a_model_that_is_half_written_is_not_there() {
    let program = r#"
import build_models, pathlib, sys
for name in ("model.onnx", "ct2"):
    target = pathlib.Path(sys.argv[1]) / name
    for interrupted in (True, False, False):
        try:
            with build_models.whole(target) as place:
                if name == "ct2":
                    place.mkdir()
                    (place / "config.json").write_text("{}")
                else:
                    place.write_text("it")
                if interrupted:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass
        print(target.exists(), len(list(target.parent.iterdir())))
"#;
    let folder = tempfile::tempdir().unwrap();
    let Some(printed) = python(program, folder.path()) else { return };
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines, ["False 0", "True 1", "True 1", "False 1", "True 2", "True 2"]);
}

/// Where there is numpy: the factors of a product, and their roundings, are those of turbo.
#[test]
fn products_have_the_same_factors() {
    let program = r#"
try:
    import numpy, products_peer
except ImportError as why:
    print("skipped:", why)
else:
    values = products_peer.values(252)
    print(float(values[0]), float(values[125]), float(values[250]), float(values[251]))
    weight, bias = products_peer.weight(8, 251), products_peer.bias(251)
    print([float(value) for value in (weight[0, 0], weight[1, 0], weight[2, 0], weight[7, 250])])
    print([float(bias[0, i]) for i in (0, 125, 250)], products_peer.aligned(bias).ctypes.data % 64)
    rounded = products_peer.to_f32(products_peer.to_bf16(numpy.array([1.00390625, 1.01171875, -3.0], numpy.float32)))
    print([float(value) for value in rounded])
"#;
    let folder = tempfile::tempdir().unwrap();
    let Some(printed) = python(program, folder.path()) else { return };
    if printed.starts_with("skipped:") {
        eprintln!("{printed}");
        return;
    }
    let lines: Vec<&str> = printed.lines().collect();
    let expected =
        ["-1.0 0.0 1.0 -1.0", "[-1.0, -2.0, -3.0, 1.0]", "[-100.0, 0.0, 100.0] 0", "[1.0, 1.015625, -3.0]"];
    assert_eq!(lines, expected);
}
