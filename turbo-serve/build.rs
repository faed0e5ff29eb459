//! Rust of the services in `proto/`, so that neither it nor what it was made from can be out of date.
//!
//! The compiler is protox, which is Rust: nobody who builds this needs `protoc`.

use std::{env, error::Error, fs, path::Path};

use protox::prost::Message;

const SERVICES: [&str; 2] = ["proto/tei.proto", "proto/open_inference.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for service in SERVICES {
        println!("cargo::rerun-if-changed={service}");
    }
    let descriptors = protox::compile(SERVICES, ["proto"])?;
    // What reflection tells of them.
    let out = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors"), descriptors.encode_to_vec())?;
    let builder = tonic_prost_build::configure().build_transport(false);
    builder.codec_path("crate::grpc::few_fields::FewFields").compile_fds(descriptors)?;
    Ok(())
}
