//! Signatures: known answers of RocketMQ's own classes, and what a change of a request does.

use bytes::Bytes;
use ferromq_protocol::{
    remoting::{Fields, RemotingCommand},
    signing::{Authorization, SIGNATURE, Signer},
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_signed_request_is_verified_until_a_value_changes(
        fields in prop::collection::btree_map("[A-Za-z_]{1,8}", "[ -~é]{0,12}", 0..8),
        body: Vec<u8>,
        secret in ".{0,80}",
        changed: prop::sample::Index,
    ) {
        let body = Bytes::from(body);
        let mut command = RemotingCommand::request(310, fields.into_iter().collect::<Fields>(), body);
        let signer = Signer::new(&secret);
        signer.sign("ada", &mut command);
        prop_assert!(signer.verifies(&command));
        let other = Signer::new(&format!("{secret}x"));
        prop_assert!(!other.verifies(&command));
        let place = changed.index(command.fields.len());
        let other = command.fields.iter().enumerate().map(|(index, (name, value))| {
            (name, if index == place { format!("{value}x") } else { value.to_owned() })
        });
        let other = RemotingCommand { fields: other.collect(), ..command.clone() };
        prop_assert!(!signer.verifies(&other));
        signer.sign("ada", &mut command);
        prop_assert_eq!(command.fields.iter().filter(|(name, _)| *name == SIGNATURE).count(), 1);
        prop_assert!(signer.verifies(&command));
    }

    #[test]
    fn any_header_is_read_or_refused(header in ".{0,80}", key in "[a-z]{1,9}", hex in "[0-9A-Fa-fg]{38,42}") {
        let _ = Authorization::parse(&header);
        let given = format!("A Credential={key}/region, SignedHeaders=x, Signature={hex}");
        let is_hex = hex.len() == 40 && !hex.contains('g');
        prop_assert_eq!(Authorization::parse(&given).is_ok_and(|read| read.access_key == key), is_hex);
    }

    #[test]
    fn an_authorization_is_verified_for_its_date_alone(secret in ".{1,80}", date in "[0-9TZ]{1,20}") {
        let signer = Signer::new(&secret);
        let header = signer.authorization("ada", &date);
        let parsed = Authorization::parse(&header).unwrap();
        prop_assert_eq!(parsed.access_key, "ada");
        prop_assert!(signer.verifies_call(&parsed, &date));
        let later = format!("{date}0");
        prop_assert!(!signer.verifies_call(&parsed, &later));
    }
}

/// Made with `AclUtils.combineRequestContent` and `AclUtils.calSignature` of rocketmq-client 5.5.0.
#[test]
fn requests_have_the_signatures_of_rocketmqs_classes() {
    type Vector<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'static [u8], &'a str);
    let vectors: [Vector<'_>; 3] = [
        (
            "ada",
            "ada's key",
            &[("b", "orders"), ("a", "group"), ("i", "KEYS\u{1}é")],
            b"two teas",
            "vVj6BUzhrtFfOO2gk+LT7MyScds=",
        ),
        ("ada", "ada's key", &[("topic", "orders")], b"", "gKdplQfSfyg8w6ls+FrYHZKTmdQ="),
        (
            "u",
            "über",
            &[("consumerGroup", "g"), ("Zeta", "1"), ("alpha", "2"), ("SecurityToken", "t")],
            b"\x00\xff",
            "wsoPlIWcvnie8fiHGDcb1HBtsxY=",
        ),
    ];
    for (user, secret, fields, body, wanted) in vectors {
        let fields: Fields = fields.iter().copied().collect();
        let mut command = RemotingCommand::request(310, fields, Bytes::from_static(body));
        Signer::new(secret).sign(user, &mut command);
        assert_eq!(command.field(SIGNATURE), Some(wanted));
        assert!(Signer::new(secret).verifies(&command));
    }
}

/// Made with `AclSigner.calSignature` of rocketmq-client 5.5.0.
#[test]
fn an_authorization_has_the_signature_of_rocketmqs_classes() {
    let header = Signer::new("ada's key").authorization("ada", "20260102T030405Z");
    let signature = "4C4E89973D8EC9AD122E3A43D5602DDE7B7DA5E8";
    let wanted =
        format!("MQv2-HMAC-SHA1 Credential=ada, SignedHeaders=x-mq-date-time, Signature={signature}");
    assert_eq!(header, wanted);
}

#[test]
fn old_clients_leave_the_flag_of_a_query_out() {
    let sign = |version, fields: &[(&str, &str)]| {
        let fields: Fields = fields.iter().copied().collect();
        let mut command = RemotingCommand { version, ..RemotingCommand::request(12, fields, Bytes::new()) };
        Signer::new("k").sign("ada", &mut command);
        command.field(SIGNATURE).map(str::to_owned)
    };
    let (plain, flagged) = ([("topic", "t")], [("topic", "t"), ("_UNIQUE_KEY_QUERY", "true")]);
    assert_eq!(sign(399, &plain), sign(399, &flagged));
    assert_ne!(sign(400, &plain), sign(400, &flagged));
}
