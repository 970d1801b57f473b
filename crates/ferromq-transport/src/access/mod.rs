//! Access control: who sends a request, and whether they may.
//!
//! The control plane pushes users and policies. `policy` decides, `needs` lists what each request needs. Signatures are in
//! `ferromq-protocol`. While access control is off, a request costs one load of a flag.

mod needs;
mod policy;

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use ferromq_protocol::signing::{ACCESS_KEY, AUTHORIZATION, Authorization, DATE_TIME, Signer};

use tracing::warn;

use crate::{LogLimiter, Verb, remoting::RemotingCommand};
pub(crate) use needs::framed_method;
pub use policy::{Actions, Kind, Network, NotANetwork, NotAPattern, Pattern, Policy, PolicyEntry};

/// Characters of a name in an error.
const SHOWN: usize = 64;

/// A user, as the control plane pushes it.
#[derive(Debug)]
pub struct User {
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
#[derive(Debug, Default)]
pub struct Access {
    is_on: AtomicBool,
    rules: ArcSwap<Rules>,
}

impl Access {
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

    /// Checks the signature and the policies of a remoting request.
    ///
    /// # Errors
    /// `AccessRefused`.
    pub fn check_command(&self, command: &RemotingCommand, peer: SocketAddr) -> Result<(), AccessRefused> {
        let Some(rules) = self.rules() else { return Ok(()) };
        let user = match rules.signer_of(command) {
            Ok(user) => Some(user),
            Err(_) if rules.unsigned.has_code(command.code) => None,
            Err(refused) => return Err(refused),
        };
        if !rules.authorizes || rules.unrestricted.has_code(command.code) {
            return Ok(());
        }
        let caller = Caller { rules: &rules, user, source: peer.ip().to_canonical() };
        needs::check_command(command, &mut |kind, name, actions| caller.check(kind, name, actions))
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
            Ok((name, user)) => Some((name.into(), Arc::clone(user))),
            Err(_) if rules.unsigned.has_method(method) => None,
            Err(refused) => return Err(refused),
        };
        let is_checked = rules.authorizes && !rules.unrestricted.has_method(method);
        let source = peer.ip().to_canonical();
        Ok(Admission(is_checked.then(|| Admitted { method, rules, user, source })))
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
    user: Option<(Box<str>, Arc<User>)>,
    source: IpAddr,
}

impl Admission {
    /// Checks whether the user may make the call with this encoded message.
    ///
    /// # Errors
    /// `AccessRefused`.
    pub fn check(&self, message: &[u8]) -> Result<(), AccessRefused> {
        let Some(admitted) = &self.0 else { return Ok(()) };
        let user = admitted.user.as_ref().map(|(name, user)| (&**name, user));
        let caller = Caller { rules: &admitted.rules, user, source: admitted.source };
        needs::check_message(admitted.method, message, &mut |kind, name, actions| {
            caller.check(kind, name, actions)
        })
    }
}

impl Rules {
    fn signer_of<'a>(
        &'a self,
        command: &'a RemotingCommand,
    ) -> Result<(&'a str, &'a Arc<User>), AccessRefused> {
        let name = command.field(ACCESS_KEY).filter(|name| !name.is_empty()).ok_or_else(unsigned)?;
        self.verified(name, |signer| signer.verifies(command))
    }

    fn caller<'a, 'b: 'a>(
        &'a self,
        authorization: Option<&'b str>,
        date_time: Option<&str>,
    ) -> Result<(&'a str, &'a Arc<User>), AccessRefused> {
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
    fn verified<'a>(
        &'a self,
        name: &'a str,
        verifies: impl FnOnce(&Signer) -> bool,
    ) -> Result<(&'a str, &'a Arc<User>), AccessRefused> {
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
        Ok((name, user))
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
    user: Option<(&'a str, &'a Arc<User>)>,
    source: IpAddr,
}

impl Caller<'_> {
    /// Checks one of a request's needs. The name of a cluster is that of the server.
    fn check(&self, kind: Kind, name: &str, actions: Actions) -> Result<(), AccessRefused> {
        let name = if kind == Kind::Cluster { &*self.rules.cluster } else { name };
        let Some((user_name, user)) = self.user else { return Err(unsigned()) };
        if user.is_super {
            return Ok(());
        }
        let decide = |policy: &Policy| policy.decide(kind, name, actions, self.source);
        let why = match decide(&user.policy).or_else(|| decide(&user.default_policy)) {
            Some(true) => return Ok(()),
            Some(false) => "a policy denies it",
            None => "no policy allows it",
        };
        Err(AccessRefused(format!(
            "the user {} may not {actions} {kind}:{} from {}: {why}",
            shown(user_name),
            name.chars().take(SHOWN).collect::<String>().escape_debug(),
            self.source
        )))
    }
}

#[cfg(test)]
mod tests;
