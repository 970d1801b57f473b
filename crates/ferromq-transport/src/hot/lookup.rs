//! Finds the topics and groups that requests name.

use std::{net::SocketAddr, sync::Arc};

use super::demote::Demotions;
use crate::{
    Demoted, Missing, TransportError,
    tables::{GroupEntry, MessageType, Tables, TopicEntry},
};

/// The pushed tables; a name that they lack is demoted to the control plane once.
pub struct Lookup {
    pub(super) tables: Arc<Tables>,
    pub(super) demotions: Demotions,
}

impl Lookup {
    /// Returns the topic's entry; an unknown topic is demoted once and looked up again.
    ///
    /// # Errors
    /// `NoSuchTopic`; `Busy` if the control plane had no time to look; `NotAvailable` if it could not create the topic.
    pub async fn topic(&self, name: &str, peer: SocketAddr) -> Result<TopicEntry, TransportError> {
        if let Some(entry) = self.tables.topic(name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(Missing::Topic(name.to_owned()), peer).await;
        self.tables
            .topic(name)
            .ok_or_else(|| lookup_error(demoted, || TransportError::NoSuchTopic(name.to_owned())))
    }

    /// As [`Self::topic`], for a topic that the request may create as `missing` describes.
    ///
    /// # Errors
    /// As [`Self::topic`].
    pub async fn topic_or(&self, missing: Missing, peer: SocketAddr) -> Result<TopicEntry, TransportError> {
        let name = match &missing {
            Missing::Topic(name)
            | Missing::Group(name)
            | Missing::TypeOfTopic { name, .. }
            | Missing::TopicToSend { name, .. }
            | Missing::TopicOfGroup { name, .. } => name.clone(),
        };
        if let Some(entry) = self.tables.topic(&name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(missing, peer).await;
        self.tables.topic(&name).ok_or_else(|| lookup_error(demoted, || TransportError::NoSuchTopic(name)))
    }

    /// Returns the entry of a topic without a type, after the control plane gave it a type: that of its first message,
    /// or that of an earlier one.
    ///
    /// # Errors
    /// `NoSuchTopic` if the topic was deleted meanwhile, or `Busy`.
    pub async fn typed_topic(
        &self,
        name: &str,
        kind: MessageType,
        peer: SocketAddr,
    ) -> Result<TopicEntry, TransportError> {
        let missing = Missing::TypeOfTopic { name: name.to_owned(), kind };
        match self.demotions.demote(missing, peer).await {
            Demoted::Busy => {
                Err(lookup_error(Demoted::Busy, || TransportError::NoSuchTopic(name.to_owned())))
            }
            // A type that cannot be persisted, for example on a full disk, rejects no message: the store reports the
            // cause better.
            Demoted::Done | Demoted::Refused | Demoted::Failed => {
                self.tables.topic(name).ok_or_else(|| TransportError::NoSuchTopic(name.to_owned()))
            }
        }
    }

    /// Returns the group's entry; an unknown group is demoted once and looked up again.
    ///
    /// # Errors
    /// `NoSuchGroup`; `Busy` if the control plane had no time to look; `NotAvailable` if it could not create the group.
    pub async fn group(&self, name: &str, peer: SocketAddr) -> Result<GroupEntry, TransportError> {
        if let Some(entry) = self.tables.group(name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(Missing::Group(name.to_owned()), peer).await;
        self.tables
            .group(name)
            .ok_or_else(|| lookup_error(demoted, || TransportError::NoSuchGroup(name.to_owned())))
    }

    /// Returns the entry of a group's retry or dead-letter topic, which is created if it is missing.
    ///
    /// # Errors
    /// Those of [`Self::topic_or`] and [`TopicEntry::check_writable`].
    pub(crate) async fn topic_of_group(
        &self,
        peer: SocketAddr,
        name: &str,
        queues: u32,
        sys_flag: i32,
    ) -> Result<TopicEntry, TransportError> {
        let entry = match self.tables.topic(name) {
            Some(entry) => entry,
            None => {
                let missing = Missing::TopicOfGroup { name: name.to_owned(), queues, sys_flag };
                self.topic_or(missing, peer).await?
            }
        };
        entry.check_writable(name)?;
        Ok(entry)
    }
}

/// Only an answer of the control plane proves that a name does not exist.
fn lookup_error(demoted: Demoted, missing: impl FnOnce() -> TransportError) -> TransportError {
    match demoted {
        Demoted::Busy => TransportError::Busy("too many requests wait for a handler"),
        Demoted::Failed => TransportError::NotAvailable(
            "the broker cannot create the topic or group; its log has the reason, such as a full disk; try again later",
        ),
        Demoted::Done | Demoted::Refused => missing(),
    }
}
