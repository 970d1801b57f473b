//! How long does a remoting frame take: decoding a send request of a 1 KiB message, its signature, and encoding its answer?
//!
//! The baseline is a copy of the frame and its CRC32; that of a signature is SHA-1 of the same bytes. `cargo bench --package ferromq-transport --bench codec`.
#![allow(missing_docs, clippy::unwrap_used)]

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ferromq_protocol::signing::Signer;
use ferromq_transport::remoting::{Decoder, Fields, HeaderForm, RemotingCommand, codec};
use sha1::{Digest as _, Sha1};

/// A send request of the Java producer: short names, and properties with separators that JSON escapes.
fn send(form: HeaderForm) -> BytesMut {
    let properties = "KEYS\u{1}order-4711\u{2}UNIQ_KEY\u{1}7F000001\
                      3B4018B4AAC2123456780000\u{2}WAIT\u{1}true\u{2}TAGS\u{1}paid\u{2}";
    let fields = [
        ("a", "producers"),
        ("b", "orders"),
        ("c", "TBW102"),
        ("d", "4"),
        ("e", "3"),
        ("f", "0"),
        ("g", "1764000000000"),
        ("h", "0"),
        ("i", properties),
        ("j", "0"),
        ("k", "false"),
        ("m", "false"),
        ("n", "broker-a"),
    ];
    let request = RemotingCommand::request(310, fields, vec![7; 1024].into());
    let frame = codec::encode(&RemotingCommand { header_form: form, opaque: 4711, ..request }).unwrap();
    BytesMut::from(&frame.to_bytes()[..])
}

fn decode_one(frame: &BytesMut) -> RemotingCommand {
    Decoder::default().next(&mut BytesMut::from(&frame[..])).unwrap().unwrap()
}

fn answer(request: &RemotingCommand) -> RemotingCommand {
    let fields = Fields::default()
        .with("msgId", "7F0000012A9F0000000000001234ABCD")
        .with("queueId", 3)
        .with("queueOffset", 123_456)
        .with("transactionId", "7F0000013B4018B4AAC2123456780000");
    RemotingCommand { fields, ..request.respond(0, None) }
}

fn codec_of_a_send(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("send_1k");
    group.throughput(Throughput::Elements(1));
    for (name, form) in [("json", HeaderForm::Json), ("rocketmq", HeaderForm::Binary)] {
        let frame = send(form);
        group.bench_function(BenchmarkId::new("copy_and_crc32", name), |bencher| {
            bencher.iter(|| crc32fast::hash(&BytesMut::from(&frame[..])));
        });
        group.bench_function(BenchmarkId::new("copy_and_decode", name), |bencher| {
            bencher.iter(|| {
                let command = decode_one(&frame);
                black_box((command.field("b"), command.field("e"), command.field("i").map(str::len)));
            });
        });
        group.bench_function(BenchmarkId::new("copy_decode_and_answer", name), |bencher| {
            bencher.iter(|| -> Bytes { codec::encode(&answer(&decode_one(&frame))).unwrap().head });
        });
    }
    let request = decode_one(&send(HeaderForm::Json));
    let signer = Signer::new("a long secret");
    group.bench_function("sha1", |bencher| {
        let signed: Vec<u8> = request
            .fields
            .iter()
            .flat_map(|(_, value)| value.bytes())
            .chain(request.body.iter().copied())
            .collect();
        bencher.iter(|| Sha1::digest(&signed));
    });
    let sign = |mut request| {
        signer.sign("ada", &mut request);
        request
    };
    group.bench_function("sign", |bencher| {
        bencher.iter_batched(|| request.clone(), sign, BatchSize::SmallInput);
    });
    let signed = sign(request);
    group.bench_function("verify", |bencher| bencher.iter(|| assert!(signer.verifies(&signed))));
    group.finish();
}

criterion_group!(benches, codec_of_a_send);
criterion_main!(benches);
