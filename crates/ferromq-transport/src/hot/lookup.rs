//! Topics and groups by name, as requests ask for them.

use std::{net::SocketAddr, sync::Arc};

use super::demote::Demotions;
use crate::{
    Demoted, Missing, TransportError,
    tables::{GroupEntry, MessageType, Tables, TopicEntry},
};

/// The pushed tables; the control plane is asked once for a name that is not in them.
pub struct Lookup {
    pub(super) tables: Arc<Tables>,
    pub(super) demotions: Demotions,
}

impl Lookup {
    /// The topic's entry; an unknown topic is demoted once and looked up again.
    ///
    /// # Errors
    /// `NoSuchTopic`, or `Busy` if the control plane had no time to look.
    pub async fn topic(&self, name: &str, peer: SocketAddr) -> Result<TopicEntry, TransportError> {
        if let Some(entry) = self.tables.topic(name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(Missing::Topic(name.to_owned()), peer).await;
        self.tables
            .topic(name)
            .ok_or_else(|| unknown(demoted, || TransportError::NoSuchTopic(name.to_owned())))
    }

    /// As [`Self::topic`], for a topic the request may create by `missing`.
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
        self.tables.topic(&name).ok_or_else(|| unknown(demoted, || TransportError::NoSuchTopic(name)))
    }

    /// The entry of a topic that has no type yet, after the control plane gave it the type of its first message, or of
    /// another message that came before.
    ///
    /// # Errors
    /// `NoSuchTopic`, where it was deleted meanwhile, or `Busy`.
    pub async fn typed_topic(
        &self,
        name: &str,
        kind: MessageType,
        peer: SocketAddr,
    ) -> Result<TopicEntry, TransportError> {
        let missing = Missing::TypeOfTopic { name: name.to_owned(), kind };
        match self.demotions.demote(missing, peer).await {
            Demoted::Busy => Err(unknown(Demoted::Busy, || TransportError::NoSuchTopic(name.to_owned()))),
            // A type that cannot be kept, on a full disk, say, refuses no message: the store knows better why.
            Demoted::Done | Demoted::Refused | Demoted::Failed => {
                self.tables.topic(name).ok_or_else(|| TransportError::NoSuchTopic(name.to_owned()))
            }
        }
    }

    /// The group's entry; an unknown group is demoted once and looked up again.
    ///
    /// # Errors
    /// `NoSuchGroup`, or `Busy` if the control plane had no time to look.
    pub async fn group(&self, name: &str, peer: SocketAddr) -> Result<GroupEntry, TransportError> {
        if let Some(entry) = self.tables.group(name) {
            return Ok(entry);
        }
        let demoted = self.demotions.demote(Missing::Group(name.to_owned()), peer).await;
        self.tables
            .group(name)
            .ok_or_else(|| unknown(demoted, || TransportError::NoSuchGroup(name.to_owned())))
    }

    /// The entry of a group's retry or dead-letter topic, which is made where it is missing.
    ///
    /// # Errors
    /// Those of [`Self::topic_or`], and `TopicForbidden`.
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

/// Only a look by the control plane proves that a name does not exist.
fn unknown(demoted: Demoted, missing: impl FnOnce() -> TransportError) -> TransportError {
    match demoted {
        Demoted::Busy => TransportError::Busy("too many requests wait for a handler"),
        Demoted::Failed => TransportError::NotAvailable(
            "the broker cannot create the topic or group: its log says why, a full disk, say; try again later",
        ),
        Demoted::Done | Demoted::Refused => missing(),
    }
}
