//! From request to response: the turbo engine and server
