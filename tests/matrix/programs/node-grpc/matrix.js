'use strict';
/* The checks of `make matrix` for the gRPC client for Node. */
const crypto = require('node:crypto');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');
const {
  Room, Seen, bodies, complain, expect, nothingMore, peek, receive, refused, same, sleep, sorted, waitFor, INVISIBLE_MS,
} = require('./room.js');

const BESIDE = 8;
const SIX = ['m0', 'm1', 'm2', 'm3', 'm4', 'm5'];

async function filtered(consumer, expected) {
  const got = bodies(await receive(consumer, expected.length));
  expect(same(sorted(got), expected), `received ${got}`);
  await nothingMore(consumer);
}

async function sendSix(room) {
  const producer = await room.producer();
  for (const body of SIX) await producer.send(room.message(body, { messageGroup: 'group' }));
}

async function receivedOne(room) {
  const consumer = await room.simple();
  await (await room.producer()).send(room.message('body'));
  const got = await peek(consumer, 1);
  expect(got.length === 1, `received ${got.length}`);
  return [consumer, got[0]];
}

/** Starts a consumer of the dead letters, once there are some: the original's proxy remembers for 20 s that not. */
async function undertaker(room) {
  for (let attempt = 0; ; attempt++) {
    await sleep(12_000);
    try {
      return await room.simple('*', FilterType.TAG, `%DLQ%${room.topic}`, `undertaker_${room.topic}`);
    } catch (failure) {
      expect(attempt < 3, `no dead letters: ${failure}`);
    }
  }
}

const checks = {
  async send(room) {
    const producer = await room.producer();
    const fields = { tag: 'tag', keys: ['k1', 'k2'], properties: new Map([['color', 'azure']]) };
    const receipt = await producer.send(room.message('body', fields));
    const [got, ...more] = await receive(await room.simple(), 1);
    expect(got && more.length === 0, `received ${more.length + 1}`);
    const seen = [got.messageId, got.topic, String(got.body), got.tag, got.keys, [...got.properties], got.deliveryAttempt];
    const sent = [receipt.messageId, room.topic, 'body', 'tag', ['k1', 'k2'], [['color', 'azure']], 1];
    expect(same(seen, sent), JSON.stringify(seen));
  },

  async consume(room) {
    const taken = await room.push();
    const producer = await room.producer();
    const sent = [...Array(10).keys()].map(number => `m${number}`);
    for (const body of sent) await producer.send(room.message(body));
    await waitFor(taken, given => given.length >= sent.length, 60);
    await sleep(3_000);
    expect(same(sorted(taken), sent.map(body => `${body}/1`)), `given ${taken}`);
  },

  async acknowledge(room) {
    const consumer = await room.simple();
    const producer = await room.producer();
    await producer.send(room.message('done'));
    await producer.send(room.message('open'));
    const got = await peek(consumer, 2);
    let received = Date.now();
    expect(same(sorted(bodies(got)), ['done', 'open']), `received ${bodies(got)}`);
    await consumer.ack(got.find(message => String(message.body) === 'done'));
    for (const attempt of [2, 3]) {
      const again = await peek(consumer, 1, 40_000);
      const after = Date.now() - received;
      expect(same(bodies(again), ['open']), `came again: ${bodies(again)}`);
      expect(again[0].deliveryAttempt === attempt, `attempt ${again[0].deliveryAttempt}`);
      expect(after > 8_000 && after < 30_000, `came again after ${after} ms`);
      received = Date.now();
      if (attempt === 2) await consumer.changeInvisibleDuration(again[0], 12_000);
      else await consumer.ack(again[0]);
    }
  },

  async tags(room) {
    const consumer = await room.simple('a || b');
    const producer = await room.producer();
    for (const tag of ['a', 'b', 'c']) await producer.send(room.message(tag, { tag }));
    await producer.send(room.message('none'));
    await filtered(consumer, ['a', 'b']);
  },

  async sql(room) {
    const consumer = await room.simple('size > 1 AND color IS NOT NULL', FilterType.SQL);
    const producer = await room.producer();
    for (const size of ['1', '2', '3']) {
      await producer.send(room.message(`s${size}`, { properties: new Map([['size', size], ['color', 'blue']]) }));
    }
    await producer.send(room.message('none'));
    await filtered(consumer, ['s2', 's3']);
  },

  async order(room) {
    const consumer = await room.simple();
    await sendSix(room);
    const got = [];
    for (let round = 0; round < 10 && got.length < SIX.length; round++) got.push(...bodies(await receive(consumer, 2, 1)));
    expect(same(got, SIX), `received ${got}`);
  },

  async order_push(room) {
    const taken = await room.push();
    await sendSix(room);
    await waitFor(taken, given => same(given, SIX.map(body => `${body}/1`)), 40);
  },

  async delay(room) {
    const consumer = await room.simple();
    const producer = await room.producer();
    const due = Date.now() + 6_000;
    await producer.send(room.message('later', { deliveryTimestamp: new Date(due) }));
    const got = await receive(consumer, 1, 40_000);
    const late = Date.now() - due;
    expect(got.length === 1, 'not received in 40 s');
    expect(late > -100 && late < 6_000, `received ${late} ms after it was due`);
  },

  async recall(room) {
    const consumer = await room.simple();
    const producer = await room.producer();
    const deliveryTimestamp = new Date(Date.now() + 8_000);
    const receipt = await producer.send(room.message('recalled', { deliveryTimestamp }));
    await producer.send(room.message('stays', { deliveryTimestamp }));
    const { messageId } = await producer.recallMessage(room.topic, receipt.recallHandle);
    expect(messageId === receipt.messageId, `recalled ${messageId}`);
    const got = bodies(await receive(consumer, 1, 40_000));
    expect(same(got, ['stays']), `received ${got}`);
    await nothingMore(consumer);
  },

  async priority(room) {
    const producer = await room.producer();
    for (const priority of [0, 1, 2]) await producer.send(room.message(`p${priority}`, { priority }));
    const consumer = await room.simple();
    const got = [];
    for (let number = 0; number < 3; number++) got.push(...bodies(await receive(consumer, 1)));
    expect(same(got, ['p2', 'p1', 'p0']), `received ${got}`);
  },

  async transaction(room) {
    const asked = [];
    const producer = await room.producer(async message => {
      asked.push(String(message.body));
      return TransactionResolution.COMMIT;
    });
    for (const end of ['commit', 'rollback', 'unknown']) {
      const transaction = producer.beginTransaction();
      await producer.send(room.message(end), transaction);
      if (end !== 'unknown') await transaction[end]();
    }
    const consumer = await room.simple();
    const got = bodies(await receive(consumer, 2, 90_000));
    expect(same(sorted(got), ['commit', 'unknown']), `received ${got}, asked ${asked}`);
    await nothingMore(consumer);
  },

  async retry(room) {
    const taken = await room.push(message => String(message.body) === 'bad' && message.deliveryAttempt === 1);
    const producer = await room.producer();
    await producer.send(room.message('bad'));
    await producer.send(room.message('good'));
    await waitFor(taken, given => given.length >= 3, 90);
    await sleep(4_000);
    expect(same(sorted(taken), ['bad/1', 'bad/2', 'good/1']), `given ${taken}`);
  },

  async dead_letter(room) {
    const taken = await room.push(() => true);
    const receipt = await (await room.producer()).send(room.message('bad'));
    await waitFor(taken, given => given.length >= 2, 60);
    const dead = await receive(await undertaker(room), 1, 40_000);
    expect(same(bodies(dead), ['bad']), `dead letters ${bodies(dead)}`);
    expect(dead[0].messageId === receipt.messageId, 'another message id');
    expect(taken.length === 2, `given ${taken}`);
  },

  async late_ack(room) {
    const [consumer, message] = await receivedOne(room);
    await sleep(INVISIBLE_MS + 2_000);
    await refused(40013, () => consumer.ack(message));
  },

  async second_ack(room) {
    const [consumer, message] = await receivedOne(room);
    await consumer.ack(message);
    await consumer.ack(message);
  },

  async short_invisible(room) {
    const consumer = await room.simple();
    await (await room.producer()).send(room.message('body'));
    await refused(40011, () => consumer.receive(1, 1_000));
  },

  async long_delay(room) {
    const producer = await room.producer();
    const deliveryTimestamp = new Date(Date.now() + 2 * 86_400_000);
    await refused(40012, () => producer.send(room.message('late', { deliveryTimestamp })));
  },

  async unknown_topic(room) {
    const producer = await room.producer(undefined, []);
    await refused(40402, () => producer.send(room.message('body')));
  },

  async big_body(room) {
    const producer = await room.producer();
    const body = crypto.randomBytes(3 << 20);
    await producer.send(room.message(body));
    const got = await receive(await room.simple(), 1);
    expect(got.length === 1 && body.equals(got[0].body), `received ${got.length}`);
    await refused('Message body size exceeds the threshold', () => producer.send(room.message('x'.repeat((4 << 20) + 1))));
  },

  async wrong_type(room) {
    const producer = await room.producer();
    await refused('message type not match with topic', () => producer.send(room.message('body', { messageGroup: 'group' })));
  },
};

async function report(name) {
  const room = new Room(name);
  let verdict = 'ok';
  try {
    await checks[name](room);
  } catch (failure) {
    complain(failure.stack);
    const seen = failure instanceof Seen ? failure.message : String(failure);
    verdict = `FAILED ${seen.replaceAll(/\s+/g, ' ')}`;
  }
  process.stdout.write(`CHECK ${name} ${verdict}\n`);
  await room.close();
}

async function main() {
  // The first client of a server waits longest.
  await new Room('send').producer().catch(complain);
  const names = process.env.MATRIX_CHECKS.split(' ');
  const worker = async () => {
    while (names.length) await report(names.shift());
  };
  await Promise.all([...Array(BESIDE)].map(worker));
  // Timers of clients may still run.
  process.exit(0);
}

main();
