//! The JSON of the example `plan`: what goes in, what comes out, and what is refused.

#[path = "../examples/plan/protocol.rs"]
mod protocol;

use protocol::answer;

#[test]
fn a_stream_is_planned_by_one_planner() {
    let input = r#"{"policy":"paper","chunk_bytes":2097152,"scale":1.2,"alignment":256,"requests":[
        [{"first_op":0,"last_op":1,"size":614400},{"first_op":1,"last_op":2,"size":2457600}],
        [{"first_op":0,"last_op":1,"size":100},{"first_op":1,"last_op":2,"size":100}]]}"#;
    let first = concat!(
        r#"{"placements":[{"chunk":1,"offset":0},{"chunk":0,"offset":0}],"#,
        r#""grow":[{"chunk":0,"bytes":2949120},{"chunk":1,"bytes":2097152}],"release":[],"#,
        r#""footprint":5046272,"peak_live_bytes":3072000}"#
    );
    let second = concat!(
        r#"{"placements":[{"chunk":0,"offset":0},{"chunk":0,"offset":256}],"grow":[],"release":[1],"#,
        r#""footprint":2949120,"peak_live_bytes":200}"#
    );
    assert_eq!(answer(input).unwrap(), format!("[{first},{second}]"));
    let retained = answer(&input.replace(r#""paper""#, r#"{"retain":2}"#)).unwrap();
    assert!(retained.ends_with(r#""release":[],"footprint":5046272,"peak_live_bytes":200}]"#), "{retained}");
}

#[test]
fn everything_but_the_requests_has_a_default() {
    let record = r#"{"first_op":0,"last_op":1,"size":2457600}"#;
    let expected = r#"[{"placements":[{"chunk":0,"offset":0}],"grow":[{"chunk":0,"bytes":2949120}],"release":[],"footprint":2949120,"peak_live_bytes":2457600}]"#;
    assert_eq!(answer(&format!(r#"{{"requests":[[{record}]]}}"#)).unwrap(), expected);
    assert_eq!(answer(r#"{"requests":[]}"#).unwrap(), "[]");
}

#[test]
fn bad_input_is_one_line() {
    let cases = [
        ("", "EOF while parsing a value at line 1 column 0"),
        ("7", "invalid type: integer `7`"),
        ("{}", "missing field `requests`"),
        (r#"{"requests":[[{"first_op":0,"last_op":1}]]}"#, "missing field `size`"),
        (r#"{"requests":[[{"first_op":0,"last_op":1,"size":-5}]]}"#, "invalid value: integer `-5`"),
        (r#"{"requests":[[{"first_op":2,"last_op":1,"size":5}]]}"#, "request 0: record 0: first_op 2"),
        (
            r#"{"requests":[[{"first_op":0,"last_op":1,"size":18446744073709551615}]]}"#,
            "request 0: record 0: with its",
        ),
        (r#"{"requests":[],"alignment":3}"#, "alignment must be a power of two, got 3"),
        (r#"{"requests":[],"scale":0.5}"#, "scale must be finite and 1 or more, got 0.5"),
        (r#"{"requests":[],"chunk_bytes":0}"#, "chunk_bytes must be 1 or more"),
        (r#"{"requests":[],"policy":"lru"}"#, "unknown variant `lru`, expected `paper` or `retain`"),
        (r#"{"requests":[],"aligment":256}"#, "unknown field `aligment`"),
    ];
    for (input, start) in cases {
        let message = answer(input).unwrap_err();
        assert!(message.starts_with(start) && !message.contains('\n'), "{input} gave {message:?}");
    }
}
