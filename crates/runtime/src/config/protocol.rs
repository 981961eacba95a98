//! Protocols of the export.

use std::{fmt, str::FromStr};

/// Protocol of the export. The text form is the value of `OTEL_EXPORTER_OTLP_PROTOCOL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP/gRPC: `grpc`.
    Grpc,
    /// OTLP/HTTP with binary protobuf: `http/protobuf`.
    Http,
}

impl Protocol {
    /// Text forms.
    pub(crate) const NAMES: [&str; 2] = ["grpc", "http/protobuf"];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [grpc, http] = Self::NAMES;
        f.write_str(match self {
            Self::Grpc => grpc,
            Self::Http => http,
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Grpc, Self::Http]
            .into_iter()
            .find(|protocol| protocol.to_string() == text)
            .ok_or_else(|| format!("{text:?} is not one of {}", Self::NAMES.join(", ")))
    }
}
