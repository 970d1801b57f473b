'use strict';
/* What the checks for the Node client share: topics, groups, clients. */
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const INVISIBLE_MS = 10_000;
const WAIT_MS = 5_000;
const SOON_MS = 30_000;

const complain = (...words) => process.stderr.write(`${words.map(String).join(' ')}\n`);
const logger = { info() {}, debug() {}, warn: complain, error: complain };

/** What a check saw where it failed. */
class Seen extends Error {}

function expect(holds, seen) {
  if (!holds) throw new Seen(seen);
}

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);
const sleep = millis => new Promise(wake => setTimeout(wake, millis));
const bodies = messages => messages.map(message => message.body.toString());
const sorted = texts => [...texts].sort();

function options() {
  const { MATRIX_ENDPOINT: endpoints, MATRIX_ACCESS_KEY: accessKey, MATRIX_SECRET_KEY: accessSecret } = process.env;
  const sessionCredentials = accessKey === undefined ? undefined : { accessKey, accessSecret };
  // The default of 3 s is short on a busy machine.
  return { endpoints, namespace: '', sslEnabled: false, requestTimeout: 10_000, logger, sessionCredentials };
}

class Room {
  #open = [];

  constructor(name) {
    this.topic = `${name}_${process.env.MATRIX_RUN}`;
  }

  async #started(client) {
    await client.startup();
    this.#open.push(client);
    return client;
  }

  producer(checker, topics = [this.topic]) {
    return this.#started(new Producer({ ...options(), topics, checker: checker && { check: checker } }));
  }

  simple(text = '*', type = FilterType.TAG, topic = this.topic, consumerGroup = this.topic) {
    const subscriptions = new Map([[topic, new FilterExpression(text, type)]]);
    return this.#started(new SimpleConsumer({ ...options(), consumerGroup, subscriptions, awaitDuration: WAIT_MS }));
  }

  /** Starts a push consumer, and returns the list of what it is given. */
  async push(fails = () => false) {
    const taken = [];
    const consume = message => {
      taken.push(`${message.body}/${message.deliveryAttempt}`);
      return fails(message) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    };
    const subscriptions = new Map([[this.topic, new FilterExpression('*', FilterType.TAG)]]);
    const listener = { consume: async message => consume(message) };
    await new PushConsumer({ ...options(), consumerGroup: this.topic, subscriptions, messageListener: listener }).startup();
    return taken;
  }

  message(body, fields = {}) {
    return { topic: this.topic, body: Buffer.from(body), ...fields };
  }

  async close() {
    for (const client of this.#open) await client.shutdown().catch(complain);
  }
}

/** Receives until there are so many, for so long at most, and acknowledges each at once. */
async function receive(consumer, count, millis = SOON_MS, acknowledges = true) {
  const got = [];
  for (const end = Date.now() + millis; got.length < count && Date.now() < end;) {
    for (const message of await consumer.receive(count - got.length, INVISIBLE_MS)) {
      if (acknowledges) await consumer.ack(message);
      got.push(message);
    }
  }
  return got;
}

const peek = (consumer, count, millis = SOON_MS) => receive(consumer, count, millis, false);

async function nothingMore(consumer) {
  const more = bodies(await consumer.receive(16, INVISIBLE_MS));
  expect(more.length === 0, `received also ${more}`);
}

async function waitFor(taken, fits, seconds) {
  for (let i = 0; i < seconds * 10 && !fits(taken); i++) await sleep(100);
  expect(fits(taken), `given after ${seconds} s: ${taken}`);
}

/** Checks that a call is refused with a code, or by the client itself, with these words. */
async function refused(sign, call) {
  let answer;
  try {
    answer = await call();
  } catch (failure) {
    expect(failure.code === sign || String(failure).includes(sign), String(failure));
    return;
  }
  throw new Seen(`accepted: ${JSON.stringify(answer)}`);
}

module.exports = { Room, Seen, bodies, complain, expect, nothingMore, peek, receive, refused, same, sleep, sorted, waitFor, INVISIBLE_MS };
