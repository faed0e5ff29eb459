//! Messages whose fields are counted before they are decoded. Two bytes may encode a tensor without a name, which takes
//! hundreds of bytes in memory, or an empty text, which takes 24, and prost decodes a message as a whole before it can
//! be checked.

use prost::{
    Message,
    bytes::Buf,
    encoding::{DecodeContext, decode_key, skip_field},
};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::ProstCodec;

use super::status::counted;
use crate::http::ApiError;

/// Most fields of a message, counting each list element: some megabytes in memory, whatever they contain.
const MOST: usize = 16_384;

/// prost's codec with a limit on fields.
pub(super) struct FewFields<T, U>(ProstCodec<T, U>);

impl<T, U> Default for FewFields<T, U> {
    fn default() -> Self {
        Self(ProstCodec::default())
    }
}

impl<T: Message + Send + 'static, U: Message + Default + Send + 'static> Codec for FewFields<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = <ProstCodec<T, U> as Codec>::Encoder;
    type Decoder = Counting<<ProstCodec<T, U> as Codec>::Decoder>;

    fn encoder(&mut self) -> Self::Encoder {
        self.0.encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Counting(self.0.decoder())
    }
}

/// A decoder that first counts a message's fields.
pub(super) struct Counting<D>(D);

impl<D: Decoder<Error = Status>> Decoder for Counting<D> {
    type Item = D::Item;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<D::Item>, Status> {
        // The message is contiguous, so the chunk is all of it.
        check(buf.chunk()).map_err(|error| counted(&error))?;
        self.0.decode(buf)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Refuses a message with too many fields. Malformed input ends the count without an error: prost reports it, and
/// decodes no further than that either.
fn check(mut message: &[u8]) -> Result<(), ApiError> {
    let mut fields = 0;
    while let Ok((tag, wire_type)) = decode_key(&mut message) {
        if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
            break;
        }
        fields += 1;
        if fields > MOST {
            return Err(ApiError::validation(format!("the message has more than {MOST} fields")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::proto::open_inference::{ModelInferRequest, model_infer_request::InferInputTensor};

    #[test]
    fn fields_are_counted_and_what_they_hold_is_not() {
        let of = |inputs| ModelInferRequest {
            inputs: vec![InferInputTensor::default(); inputs],
            ..Default::default()
        };
        assert!(check(&of(MOST).encode_to_vec()).is_ok());
        let error = check(&of(MOST + 1).encode_to_vec()).unwrap_err();
        assert_eq!(error.message(), "the message has more than 16384 fields");
        let deep = InferInputTensor { shape: vec![300; 2 * MOST], ..Default::default() };
        let deep = ModelInferRequest { inputs: vec![deep], ..Default::default() };
        assert!(check(&deep.encode_to_vec()).is_ok());
        for broken in [&b"\xff"[..], b"\x0a\x7f", b"\x0f", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"] {
            assert!(check(broken).is_ok(), "that is for prost to tell: {broken:?}");
        }
    }
}
