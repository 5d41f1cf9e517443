//! Stub, as it differs from nothing yet.
use super::dialect::Dialect;
use super::step::Step;
/// stub
pub struct Draft;
impl Step for Draft {
    fn dialect(&self) -> Dialect {
        Dialect::Draft
    }
    fn losses(&self) -> &'static [&'static str] {
        &[]
    }
}
