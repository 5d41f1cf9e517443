//! 1.0.0, as it differs from 1.1.0, which is a preview: hosts do not say how their paths look.

use serde_json::Value;

use super::dialect::Dialect;
use super::step::{Context, StepFacts, VersionStep};

/// Difference of 1.0.0 from 1.1.0.
pub struct V1_0_0;

impl VersionStep for V1_0_0 {
    fn facts(&self) -> &'static StepFacts {
        &StepFacts { dialect: Dialect::V1_0_0, losses: &[], lacks: &[], drops: &[] }
    }

    fn result_down(&self, method: &str, result: &mut Value, _context: &mut Context<'_>) {
        if let ("initialize", Value::Object(result)) = (method, result) {
            result.remove("environment");
        }
    }
}
