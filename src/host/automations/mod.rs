//! Automations: messages that the host sends by itself, on request or by a schedule.
//!
//! Owns: definitions, runs, and when the next run is due.
//! Never: reads a clock, or talks to an agent: the router creates sessions and starts turns.

#[cfg(test)]
mod cron;
