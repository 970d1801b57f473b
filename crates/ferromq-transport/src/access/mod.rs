//! Access control: who sends a request, and whether they may.
//!
//! The control plane pushes users and policies. `policy` decides, `needs` lists what each request needs. Signatures are in
//! `ferromq-protocol`. While access control is off, a request costs one load of a flag.

mod needs;
mod policy;

use std::{
    collections::{HashMap, HashSet},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use ferromq_protocol::{
    record::names::{RETRY_PREFIX, is_closed_to_clients},
    signing::{ACCESS_KEY, AUTHORIZATION, Authorization, DATE_TIME, Signer},
};

use tracing::warn;

use crate::{LogLimiter, Verb, remoting::RemotingCommand, tables::Tables};
pub(crate) use needs::framed_method;
pub use policy::{Actions, Kind, Network, NotANetwork, NotAPattern, Pattern, Policy, PolicyEntry};

/// Characters of a name in an error.
const SHOWN: usize = 64;

/// The name of the user of a request; `None` if it has no valid signature and needs none.
pub type UserName = Option<Arc<str>>;

/// A user, as the control plane pushes it.
#[derive(Debug)]
pub struct User {
    /// Its name.
    pub name: Arc<str>,
    /// Checks its signatures.
    pub signer: Signer,
    /// May do everything.
    pub is_super: bool,
    /// Whether its requests are accepted.
    pub is_enabled: bool,
    /// Its policies.
    pub policy: Policy,
    /// Policies for what no entry of `policy` decides.
    pub default_policy: Policy,
}

/// Users, policies and exceptions.
#[derive(Debug, Default)]
pub struct Rules {
    /// Whether policies are checked, too.
    pub authorizes: bool,
    /// The name of the cluster, which requests about the broker itself need.
    pub cluster: Box<str>,
    /// Users by name.
    pub users: HashMap<Box<str>, Arc<User>>,
    /// Requests that need no signature.
    pub unsigned: Exceptions,
    /// Requests that need no policy.
    pub unrestricted: Exceptions,
}

/// Requests that a rule does not apply to.
#[derive(Debug, Default)]
pub struct Exceptions {
    codes: HashSet<i32>,
    methods: HashSet<Box<str>>,
}

/// What begins the name of a gRPC request in RocketMQ's white lists.
const PACKAGE: &str = "apache.rocketmq.v2.";
const TELEMETRY: &str = "Telemetry";

impl Exceptions {
    /// Reads request codes and names of gRPC requests, such as `apache.rocketmq.v2.HeartbeatRequest`.
    ///
    /// # Errors
    /// The first name that is neither.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, &'a str> {
        let mut parsed = Self::default();
        for name in names {
            if let Ok(code) = name.parse() {
                parsed.codes.insert(code);
                continue;
            }
            let request = name.strip_prefix(PACKAGE).ok_or(name)?;
            let method = if request == "TelemetryCommand" {
                TELEMETRY
            } else {
                request.strip_suffix("Request").ok_or(name)?
            };
            needs::of_method(method).ok_or(name)?;
            parsed.methods.insert(method.into());
        }
        Ok(parsed)
    }

    fn has_code(&self, code: i32) -> bool {
        !self.codes.is_empty() && self.codes.contains(&code)
    }

    fn has_method(&self, method: &str) -> bool {
        !self.methods.is_empty() && self.methods.contains(method)
    }
}

/// Why a request is refused, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AccessRefused(String);

impl AccessRefused {
    /// Logs it, at most once a while: a client may repeat its request without end.
    pub(crate) fn log(&self) {
        static REFUSED: LogLimiter = LogLimiter::new();
        REFUSED.log(|suppressed| warn!(reason = %self, suppressed, "request refused by access control"));
    }
}

/// Access control of a server; shared by its listeners.
pub struct Access {
    is_on: AtomicBool,
    rules: ArcSwap<Rules>,
    /// Topics and groups, which decide whose a retry topic of POP is.
    tables: Arc<Tables>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("is_on", &self.is_on).finish_non_exhaustive()
    }
}

impl Access {
    /// Makes access control that is off.
    #[must_use]
    pub fn new(tables: Arc<Tables>) -> Self {
        Self { is_on: AtomicBool::default(), rules: ArcSwap::default(), tables }
    }

    /// Turns access control on with these rules, or replaces them; `None` turns it off.
    pub fn set(&self, rules: Option<Rules>) {
        let is_on = rules.is_some();
        // While it is turned on, no request may see the flag without the rules.
        self.rules.store(Arc::new(rules.unwrap_or_default()));
        self.is_on.store(is_on, Ordering::Release);
    }

    fn rules(&self) -> Option<Arc<Rules>> {
        self.is_on.load(Ordering::Acquire).then(|| self.rules.load_full())
    }

    /// Checks the signature and the policies of a remoting request, and returns its user.
    ///
    /// # Errors
    /// `AccessRefused`.
    pub fn check_command(
        &self,
        command: &RemotingCommand,
        peer: SocketAddr,
    ) -> Result<UserName, AccessRefused> {
        let Some(rules) = self.rules() else { return Ok(None) };
        let user = match rules.signer_of(command) {
            Ok(user) => Some(user),
            Err(_) if rules.unsigned.has_code(command.code) => None,
            Err(refused) => return Err(refused),
        };
        if rules.authorizes && !rules.unrestricted.has_code(command.code) {
            let caller = self.caller(&rules, user, peer);
            needs::check_command(command, &mut |kind, name, actions| caller.check(kind, name, actions))?;
        }
        Ok(user.map(|user| Arc::clone(&user.name)))
    }

    /// Checks what a remoting request, which passed [`Self::check_command`], needs beyond what it names: a topic that the
    /// server found in its store.
    ///
    /// # Errors
    /// `AccessRefused`, whose text does not name the topic.
    pub fn check_found(
        &self,
        command: &RemotingCommand,
        peer: SocketAddr,
        topic: &str,
        actions: Actions,
    ) -> Result<(), AccessRefused> {
        let Some(rules) = self.rules() else { return Ok(()) };
        if !rules.authorizes || rules.unrestricted.has_code(command.code) {
            return Ok(());
        }
        let user = rules.signer_of(command).ok();
        self.caller(&rules, user, peer)
            .check(Kind::Topic, topic, actions)
            .map_err(|_| AccessRefused(format!("the user may not {actions} the topic of this message")))
    }

    /// Whether a user may act on a topic, from an address. `None`: the user is unknown.
    #[must_use]
    pub fn allows(&self, user: Option<&str>, peer: SocketAddr, topic: &str, actions: Actions) -> bool {
        let Some(rules) = self.rules().filter(|rules| rules.authorizes) else { return true };
        let user = user.and_then(|name| rules.users.get(name)).filter(|user| user.is_enabled);
        self.caller(&rules, user, peer).check(Kind::Topic, topic, actions).is_ok()
    }

    fn caller<'a>(&'a self, rules: &'a Rules, user: Option<&'a Arc<User>>, peer: SocketAddr) -> Caller<'a> {
        Caller { rules, user, source: peer.ip().to_canonical(), tables: &self.tables }
    }

    /// Checks the signature of a gRPC or framed call, whose metadata `get` returns. [`Admission::check`] does the rest, once
    /// the message is there.
    ///
    /// # Errors
    /// `AccessRefused`.
    pub fn admit<'a>(
        &self,
        method: &'static str,
        get: impl Fn(&str) -> Option<&'a str>,
        peer: SocketAddr,
    ) -> Result<Admission, AccessRefused> {
        let Some(rules) = self.rules() else { return Ok(Admission(None)) };
        let user = match rules.caller(get(AUTHORIZATION), get(DATE_TIME)) {
            Ok(user) => Some(Arc::clone(user)),
            Err(_) if rules.unsigned.has_method(method) => None,
            Err(refused) => return Err(refused),
        };
        let is_checked = rules.authorizes && !rules.unrestricted.has_method(method);
        let tables = Arc::clone(&self.tables);
        Ok(Admission(Some(Admitted {
            method,
            rules,
            user,
            is_checked,
            source: peer.ip().to_canonical(),
            tables,
        })))
    }
}

/// The name under which a gRPC method is checked; empty for one that is not listed, which only super users may call.
#[must_use]
pub(crate) fn known_method(name: &str) -> &'static str {
    needs::known_method(name)
}

/// Returns whether a request is listed with what it needs.
#[must_use]
pub fn is_listed(verb: &Verb) -> bool {
    match verb {
        Verb::Code(code) => needs::of_code(*code).is_some(),
        Verb::Rpc(name) => needs::of_method(name).is_some(),
    }
}

/// A call whose signature was checked.
pub struct Admission(Option<Admitted>);

struct Admitted {
    method: &'static str,
    rules: Arc<Rules>,
    /// `None` if the call needs no signature, and has none.
    user: Option<Arc<User>>,
    /// Whether its policies count.
    is_checked: bool,
    source: IpAddr,
    tables: Arc<Tables>,
}

impl Admission {
    /// Checks whether the user may make the call with this encoded message.
    ///
    /// # Errors
    /// `AccessRefused`.
    pub fn check(&self, message: &[u8]) -> Result<(), AccessRefused> {
        let Some(admitted) = self.0.as_ref().filter(|admitted| admitted.is_checked) else { return Ok(()) };
        let Admitted { rules, user, source, tables, .. } = admitted;
        let caller = Caller { rules, user: user.as_ref(), source: *source, tables };
        needs::check_message(admitted.method, message, &mut |kind, name, actions| {
            caller.check(kind, name, actions)
        })
    }

    /// The call's user.
    #[must_use]
    pub fn user(&self) -> UserName {
        self.0.as_ref()?.user.as_ref().map(|user| Arc::clone(&user.name))
    }
}

impl Rules {
    fn signer_of(&self, command: &RemotingCommand) -> Result<&Arc<User>, AccessRefused> {
        let name = command.field(ACCESS_KEY).filter(|name| !name.is_empty()).ok_or_else(unsigned)?;
        self.verified(name, |signer| signer.verifies(command))
    }

    fn caller(
        &self,
        authorization: Option<&str>,
        date_time: Option<&str>,
    ) -> Result<&Arc<User>, AccessRefused> {
        let authorization = authorization.filter(|text| !text.is_empty()).ok_or_else(unsigned)?;
        let parsed = Authorization::parse(authorization)
            .map_err(|why| AccessRefused(format!("the metadata {AUTHORIZATION} is malformed: {why}")))?;
        let date_time = date_time.filter(|text| !text.is_empty()).ok_or_else(|| {
            AccessRefused(format!(
                "the metadata {DATE_TIME} is missing; the signature in {AUTHORIZATION} covers it"
            ))
        })?;
        self.verified(parsed.access_key, |signer| signer.verifies_call(&parsed, date_time))
    }

    /// Finds a user. An unknown user and a wrong signature get the same answer, after the same work, so that names cannot be
    /// guessed.
    fn verified(
        &self,
        name: &str,
        verifies: impl FnOnce(&Signer) -> bool,
    ) -> Result<&Arc<User>, AccessRefused> {
        let shown = shown(name);
        let user = self.users.get(name);
        let is_right = verifies(user.map_or(&*UNKNOWN, |user| &user.signer));
        let Some(user) = user.filter(|_| is_right) else {
            return Err(AccessRefused(format!(
                "the access key {shown} is unknown, or its secret key is another one; check both"
            )));
        };
        if !user.is_enabled {
            return Err(AccessRefused(format!("the user {shown} is disabled; enable it first")));
        }
        Ok(user)
    }
}

/// Verifies the signatures of users that are not there.
static UNKNOWN: LazyLock<Signer> = LazyLock::new(|| Signer::new(""));

fn unsigned() -> AccessRefused {
    AccessRefused(
        "the request has no credentials, and this server needs them; give the client an access key and a secret key"
            .into(),
    )
}

fn shown(name: &str) -> String {
    format!("{:?}", name.chars().take(SHOWN).collect::<String>())
}

/// The sender of a request.
struct Caller<'a> {
    rules: &'a Rules,
    user: Option<&'a Arc<User>>,
    source: IpAddr,
    tables: &'a Tables,
}

impl Caller<'_> {
    /// Checks one of a request's needs. The name of a cluster is that of the server; a retry topic belongs to its group.
    fn check(&self, kind: Kind, name: &str, actions: Actions) -> Result<(), AccessRefused> {
        let Some(user) = self.user else { return Err(unsigned()) };
        if user.is_super {
            return Ok(());
        }
        let (kind, name) = match (kind, name.strip_prefix(RETRY_PREFIX)) {
            (Kind::Cluster, _) => (kind, &*self.rules.cluster),
            (Kind::Topic, Some(retried)) => return self.check_owners(retried, actions),
            _ => (kind, name),
        };
        let decide = |policy: &Policy| policy.decide(kind, name, actions, self.source);
        let why = match decide(&user.policy).or_else(|| decide(&user.default_policy)) {
            // They hold messages of all topics.
            _ if kind == Kind::Topic && is_closed_to_clients(name) => "it is for super users alone",
            Some(true) => return Ok(()),
            Some(false) => "a policy denies it",
            None => "no policy allows it",
        };
        Err(AccessRefused(format!(
            "the user {} may not {actions} {kind}:{} from {}: {why}",
            shown(&user.name),
            name.chars().take(SHOWN).collect::<String>().escape_debug(),
            self.source
        )))
    }

    /// Checks the groups that a retry topic may belong to: `GROUP`, and for those of POP `GROUP+TOPIC` or `GROUP_TOPIC`.
    fn check_owners(&self, retried: &str, actions: Actions) -> Result<(), AccessRefused> {
        let check = |group: &str| self.check(Kind::Group, group, actions);
        // No group has this character in its name.
        if let Some((group, _)) = retried.split_once('+') {
            return check(group);
        }
        let mut has_owner = false;
        // Before the first heartbeat of a new group its retry topic is not there, either.
        let is_there = self.tables.topic(&format!("{RETRY_PREFIX}{retried}")).is_some();
        if is_there && self.tables.group(retried).is_none() {
            let parts = retried.match_indices('_').map(|(at, _)| (&retried[..at], &retried[at + 1..]));
            let known = parts.filter(|(group, topic)| {
                self.tables.group(group).is_some() && self.tables.topic(topic).is_some()
            });
            for (group, _) in known {
                check(group)?;
                has_owner = true;
            }
        }
        if has_owner { Ok(()) } else { check(retried) }
    }
}

#[cfg(test)]
mod tests;
