//! Stub, as it differs from nothing yet.
use super::dialect::Dialect;
use super::step::Step;
/// stub
pub struct V0_1_0;
impl Step for V0_1_0 {
    fn dialect(&self) -> Dialect {
        Dialect::V0_1_0
    }
    fn losses(&self) -> &'static [&'static str] {
        &[]
    }
}
