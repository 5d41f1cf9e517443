//! Ends of a check before its last step.
//!
//! Owns: the three reasons.
//! Never: prints them.

/// Reason why a check ended early.
#[derive(Debug)]
pub enum CheckStop {
    /// The host breaks the law; how it does, as a sentence.
    Broken(String),
    /// The host does not have what the law is about; the reason, as a sentence.
    NotOffered(String),
    /// The check could not be made: the host cannot be started, for example.
    Failed(anyhow::Error),
}

/// Result of a step of a check.
pub type Judged<T> = Result<T, CheckStop>;

impl From<anyhow::Error> for CheckStop {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// Returns the end of a check whose law is broken.
pub fn broken<T>(why: impl Into<String>) -> Judged<T> {
    Err(CheckStop::Broken(why.into()))
}

/// Returns the end of a check whose law is about something that the host does not have.
pub fn not_offered<T>(why: impl Into<String>) -> Judged<T> {
    Err(CheckStop::NotOffered(why.into()))
}

/// Ends a check with a broken law, unless the condition holds.
macro_rules! must {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return $crate::conform::stop::broken(format!($($why)+));
        }
    };
}
pub(super) use must;
