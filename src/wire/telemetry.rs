//! URIs of exported logs.
//!
//! Owns: the template that `initialize` announces, and the levels that it expands to.
//! Never: knows who subscribes.

use ahp_types::state::TelemetryCapabilities;

use super::errors::RpcError;

const SCHEME: &str = "ahp-otlp:";
const PREFIX: &str = "ahp-otlp://logs/";

/// Severities of OpenTelemetry, each the lowest one of its level.
const LEVELS: [(&str, u8); 6] =
    [("trace", 1), ("debug", 5), ("info", 9), ("warn", 13), ("error", 17), ("fatal", 21)];

/// Returns the channels of telemetry, as `initialize` announces them.
pub fn announced() -> TelemetryCapabilities {
    TelemetryCapabilities { logs: Some(format!("{PREFIX}{{level}}")), ..TelemetryCapabilities::default() }
}

/// Returns whether a URI has the form of a channel of telemetry.
pub fn is_telemetry(channel: &str) -> bool {
    channel.starts_with(SCHEME)
}

/// Returns whether a URI has the form of a channel of logs.
pub fn is_logs(channel: &str) -> bool {
    channel.starts_with(PREFIX)
}

/// Returns the lowest severity that a channel exports; `None` if it is no channel of logs.
///
/// # Errors
/// `-32602` for an unknown level.
pub fn severity_of(channel: &str) -> Option<Result<u8, RpcError>> {
    let level = channel.strip_prefix(PREFIX)?;
    let known = LEVELS.iter().find(|(name, _)| level.eq_ignore_ascii_case(name));
    let unknown = || {
        let names = LEVELS.map(|(name, _)| name).join(", ");
        RpcError::invalid_params(format_args!("logs have the levels {names}, and not `{level}`"))
    };
    Some(known.map(|(_, severity)| *severity).ok_or_else(unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_of_logs_in_any_case_is_its_lowest_severity() {
        let severity = |channel: &str| severity_of(channel).map(|it| it.map_err(|error| error.code));
        assert_eq!(severity("ahp-otlp://logs/info"), Some(Ok(9)));
        assert_eq!(severity("ahp-otlp://logs/ERROR"), Some(Ok(17)));
        assert_eq!(severity("ahp-otlp://logs/verbose"), Some(Err(-32602)));
        assert_eq!(severity("ahp-otlp://traces"), None);
    }
}
