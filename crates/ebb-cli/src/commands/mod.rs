//! One file a command.

pub(crate) mod certs;
pub(crate) mod chaos;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod data;
pub(crate) mod demo;
pub(crate) mod describe;
pub(crate) mod export;
pub(crate) mod join;
pub(crate) mod list;
pub(crate) mod recompute;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod reproduce;
pub(crate) mod resume;
pub(crate) mod revoke;
pub(crate) mod rollback;
pub(crate) mod run;
pub(crate) mod selection;
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod similarity;
pub(crate) mod token;
pub(crate) mod worker;
pub(crate) mod world;
