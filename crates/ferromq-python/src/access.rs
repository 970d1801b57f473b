//! Users and policies that Python pushes, as the transport takes them.

use std::sync::Arc;

use ferromq_protocol::signing::Signer;
use ferromq_transport::{
    access::{Actions, Exceptions, Pattern, Policy, PolicyEntry, Rules, User},
    limits::{LimitRule, Rate},
};
use pyo3::{exceptions::PyValueError, prelude::*};

/// A user: (name, secret key, is super, is enabled, entries of its policy, entries of its default policy).
pub type PyUser = (String, String, bool, bool, Vec<PyEntry>, Vec<PyEntry>);

/// An entry of a policy: (resource, actions, source addresses, whether it allows them).
pub type PyEntry = (String, Vec<String>, Vec<String>, bool);

/// A limit: (user, topic, messages and bytes a second of sends and of receives, connections); `None`: not in this entry.
pub type PyLimitRule = (Option<String>, Option<String>, Option<(PyRate, PyRate)>, Option<u64>);

type PyRate = (Option<u64>, Option<u64>);

/// Makes a rule of a limit.
pub fn limit_rule((user, topic, rates, connections): PyLimitRule) -> LimitRule {
    let rate = |(messages, bytes): PyRate| Rate { messages, bytes };
    let name = |name: Option<String>| name.map(String::into_boxed_str);
    let rates = rates.map(|(send, receive)| (rate(send), rate(receive)));
    LimitRule { user: name(user), topic: name(topic), rates, connections }
}

/// Makes the rules. `ValueError` names what is wrong.
pub fn rules(
    users: Vec<PyUser>,
    cluster: &str,
    authorizes: bool,
    unsigned: &[String],
    unrestricted: &[String],
) -> PyResult<Rules> {
    let users =
        users.into_iter().map(|(name, secret_key, is_super, is_enabled, entries, default_entries)| {
            let (policy, default_policy) = (policy(entries)?, policy(default_entries)?);
            let signer = Signer::new(&secret_key);
            let user =
                User { name: name.as_str().into(), signer, is_super, is_enabled, policy, default_policy };
            Ok((name.into_boxed_str(), Arc::new(user)))
        });
    Ok(Rules {
        authorizes,
        cluster: cluster.into(),
        users: users.collect::<PyResult<_>>()?,
        unsigned: exceptions(unsigned)?,
        unrestricted: exceptions(unrestricted)?,
    })
}

fn exceptions(names: &[String]) -> PyResult<Exceptions> {
    Exceptions::parse(names.iter().map(String::as_str)).map_err(|name| {
        wrong(format!(
            "{name:?} is no request: a code, or a name such as apache.rocketmq.v2.HeartbeatRequest"
        ))
    })
}

fn policy(entries: Vec<PyEntry>) -> PyResult<Policy> {
    let entries = entries.into_iter().map(|(resource, actions, sources, allows)| {
        let actions = actions
            .iter()
            .map(|name| Actions::named(name).ok_or_else(|| wrong(format!("the action {name:?} is unknown"))));
        let all: Vec<Actions> = actions.collect::<PyResult<_>>()?;
        let actions = all.into_iter().reduce(Actions::or);
        let sources = sources.iter().map(|source| source.parse().map_err(|error| wrong(format!("{error}"))));
        Ok(PolicyEntry {
            resources: resource.parse::<Pattern>().map_err(|error| wrong(error.to_string()))?,
            actions: actions.ok_or_else(|| wrong(format!("the entry for {resource} has no action")))?,
            sources: sources.collect::<PyResult<_>>()?,
            allows,
        })
    });
    Ok(Policy::new(entries.collect::<PyResult<Vec<_>>>()?))
}

fn wrong(why: String) -> PyErr {
    PyValueError::new_err(why)
}
