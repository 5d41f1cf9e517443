//! Stub, as it differs from nothing yet.
use super::dialect::Dialect;
use super::step::Step;
/// stub
pub struct Integer;
impl Step for Integer {
    fn dialect(&self) -> Dialect {
        Dialect::Integer
    }
    fn losses(&self) -> &'static [&'static str] {
        &[]
    }
}
