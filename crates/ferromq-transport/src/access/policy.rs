//! Policies: which actions on which resources a user may take, and from which addresses.
//!
//! The precedence is that of RocketMQ's `AclAuthorizationHandler`. Of the entries that match resource, action and address,
//! a literal name counts before a prefix, a longer prefix before a shorter one, a prefix before all resources of a kind,
//! and those before everything.

use std::{collections::HashMap, fmt, net::IpAddr, str::FromStr};

/// The kind of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A topic.
    Topic,
    /// A consumer group.
    Group,
    /// The cluster: the broker itself.
    Cluster,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Topic => "Topic",
            Self::Group => "Group",
            Self::Cluster => "Cluster",
        })
    }
}

/// A set of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actions(u8);

impl Actions {
    /// Send messages.
    pub const PUB: Self = Self(1);
    /// Receive messages.
    pub const SUB: Self = Self(2);
    /// Create.
    pub const CREATE: Self = Self(4);
    /// Update.
    pub const UPDATE: Self = Self(8);
    /// Delete.
    pub const DELETE: Self = Self(16);
    /// Read what it is and how it is.
    pub const GET: Self = Self(32);
    /// List all.
    pub const LIST: Self = Self(64);
    /// All of them.
    pub const ALL: Self = Self(127);
    const NAMES: [(&'static str, Self); 8] = [
        ("Pub", Self::PUB),
        ("Sub", Self::SUB),
        ("Create", Self::CREATE),
        ("Update", Self::UPDATE),
        ("Delete", Self::DELETE),
        ("Get", Self::GET),
        ("List", Self::LIST),
        ("All", Self::ALL),
    ];

    /// The set of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The action that RocketMQ calls so, in any case.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = Self::NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, actions)| *actions)
    }

    const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl fmt::Display for Actions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Self::NAMES.iter().filter(|(_, one)| *one != Self::ALL && self.meets(*one));
        names.next().map_or(Ok(()), |(name, _)| f.write_str(name))?;
        names.try_for_each(|(name, _)| write!(f, " or {name}"))
    }
}

/// The resources of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// One resource.
    Literal(Kind, Box<str>),
    /// Resources whose names begin so.
    Prefix(Kind, Box<str>),
    /// All resources of a kind.
    Any(Kind),
    /// All resources.
    Everything,
}

impl Pattern {
    fn matches(&self, kind: Kind, name: &str) -> bool {
        match self {
            Self::Literal(of, exact) => *of == kind && **exact == *name,
            Self::Prefix(of, begin) => *of == kind && name.starts_with(&**begin),
            Self::Any(of) => *of == kind,
            Self::Everything => true,
        }
    }

    /// Orders patterns: the most exact ones have the lowest rank.
    fn rank(&self) -> (u8, usize) {
        match self {
            Self::Literal(..) => (0, 0),
            Self::Prefix(_, begin) => (1, usize::MAX - begin.len()),
            Self::Any(_) => (2, 0),
            Self::Everything => (3, 0),
        }
    }
}

/// A text that names no resources.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no resources; use *, or Topic:, Group: or Cluster: and a name, a prefix with * behind it, or *"
)]
pub struct NotAPattern(String);

impl FromStr for Pattern {
    type Err = NotAPattern;

    fn from_str(text: &str) -> Result<Self, NotAPattern> {
        let wrong = || NotAPattern(text.to_owned());
        if text == "*" {
            return Ok(Self::Everything);
        }
        let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
        let kinds = [Kind::Topic, Kind::Group, Kind::Cluster];
        let kind =
            kinds.into_iter().find(|known| known.to_string().eq_ignore_ascii_case(kind)).ok_or_else(wrong)?;
        let (name, is_prefix) = match name.strip_suffix('*') {
            Some(name) => (name, true),
            None => (name, false),
        };
        match (name, is_prefix) {
            ("", true) => Ok(Self::Any(kind)),
            _ if name.is_empty() || name.contains('*') => Err(wrong()),
            (name, true) => Ok(Self::Prefix(kind, name.into())),
            (name, false) => Ok(Self::Literal(kind, name.into())),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(kind, name) => write!(f, "{kind}:{name}"),
            Self::Prefix(kind, begin) => write!(f, "{kind}:{begin}*"),
            Self::Any(kind) => write!(f, "{kind}:*"),
            Self::Everything => f.write_str("*"),
        }
    }
}

/// A range of addresses: `10.0.0.0/8`, `fd00::/8`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    bits: u128,
    mask: u128,
    is_v4: bool,
}

/// A text that is no range of addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address and no range such as 10.0.0.0/8")]
pub struct NotANetwork(String);

fn bits_of(address: IpAddr) -> (u128, bool) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), true),
        IpAddr::V6(address) => (address.to_bits(), false),
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let (bits, is_v4) = bits_of(address);
        is_v4 == self.is_v4 && bits & self.mask == self.bits
    }
}

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let wrong = || NotANetwork(text.to_owned());
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let (bits, is_v4) = bits_of(address.parse().map_err(|_| wrong())?);
        let width = if is_v4 { 32 } else { 128 };
        let left = width
            - prefix
                .filter(|prefix| *prefix <= width)
                .or(prefix.is_none().then_some(width))
                .ok_or_else(wrong)?;
        let mask = u128::MAX.checked_shl(left).unwrap_or(0);
        Ok(Self { bits: bits & mask, mask, is_v4 })
    }
}

/// What a user may or must not do with some resources.
#[derive(Debug, Clone)]
pub struct PolicyEntry {
    /// The resources.
    pub resources: Pattern,
    /// The actions.
    pub actions: Actions,
    /// Where the request comes from; empty for anywhere.
    pub sources: Vec<Network>,
    /// Whether it allows the actions, or denies them.
    pub allows: bool,
}

/// The entries of a policy, ready for lookups.
#[derive(Debug, Default)]
pub struct Policy {
    /// Entries for one resource each, by its name.
    literals: HashMap<Box<str>, Vec<PolicyEntry>>,
    /// The others, the most exact ones first.
    patterns: Vec<PolicyEntry>,
}

impl Policy {
    /// Makes a policy of entries.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = PolicyEntry>) -> Self {
        let mut policy = Self::default();
        for entry in entries {
            match &entry.resources {
                Pattern::Literal(_, name) => policy.literals.entry(name.clone()).or_default().push(entry),
                _ => policy.patterns.push(entry),
            }
        }
        // Of equally exact entries, those that deny count first.
        policy.patterns.sort_by_key(|entry| (entry.resources.rank(), entry.allows));
        policy.literals.values_mut().for_each(|entries| entries.sort_by_key(|entry| entry.allows));
        policy
    }

    /// Returns whether it allows one of the actions on a resource; `None` if no entry matches.
    #[must_use]
    pub fn decide(&self, kind: Kind, name: &str, actions: Actions, source: IpAddr) -> Option<bool> {
        let literals = self.literals.get(name).into_iter().flatten();
        let mut entries = literals.chain(&self.patterns);
        let found = entries.find(|entry| {
            entry.resources.matches(kind, name)
                && entry.actions.meets(actions)
                && (entry.sources.is_empty() || entry.sources.iter().any(|range| range.contains(source)))
        });
        found.map(|entry| entry.allows)
    }
}
