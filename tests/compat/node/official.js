'use strict';
/*
 * RocketMQ's own client for Node, driven line by line. The commands, what they are told and what they answer are those of
 * ../java5/Official.java, so that one test asks either.
 */
const crypto = require('node:crypto');
const fs = require('node:fs');
const readline = require('node:readline');
const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const LONG = 200;
const VERDICTS = {
  commit: TransactionResolution.COMMIT,
  rollback: TransactionResolution.ROLLBACK,
  unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
};

// Standard output belongs to the answers.
const complain = (...words) => process.stderr.write(`${words.map(String).join(' ')}\n`);
const logger = { info() {}, debug() {}, warn: complain, error: complain };

function options(endpoints, security) {
  // The default of 3 s is short where two cores are busy.
  const [mode, accessKey, accessSecret] = security.split(':');
  const sessionCredentials = accessKey === undefined ? undefined : { accessKey, accessSecret };
  return { endpoints, namespace: '', sslEnabled: mode === 'tls', requestTimeout: 20_000, logger, sessionCredentials };
}

function lines(file) {
  return fs.readFileSync(file, 'utf8').split('\n').slice(0, -1).map(line => line.split('\t'));
}

function write(file, rows) {
  fs.writeFileSync(file, rows.map(row => `${row.join('\t')}\n`).join(''));
}

class OfficialProducer {
  #checked = 0;
  #producer;

  async start(endpoints, security, verdict, ...topics) {
    const check = async () => {
      this.#checked += 1;
      return VERDICTS[verdict];
    };
    this.#producer = new Producer({ ...options(endpoints, security), topics, checker: { check } });
    await this.#producer.startup();
  }

  async send(file, answers) {
    const receipts = [];
    for (const [topic, body, ...words] of lines(file)) {
      const receipt = await this.#sendOne(topic, body, words);
      receipts.push([receipt.messageId, receipt.recallHandle ?? '']);
    }
    write(answers, receipts);
    return '';
  }

  async #sendOne(topic, body, words) {
    const message = { topic, properties: new Map() };
    let repeat = 1;
    let end;
    for (const word of words) {
      const at = word.indexOf('=');
      const [name, value] = [word.slice(0, at), word.slice(at + 1)];
      if (name === 'tag') message.tag = value;
      else if (name === 'keys') message.keys = value.split(',');
      else if (name === 'group') message.messageGroup = value;
      else if (name === 'at') message.deliveryTimestamp = new Date(Number(value));
      else if (name === 'priority') message.priority = Number(value);
      else if (name === 'repeat') repeat = Number(value);
      else if (name === 'transaction') end = value;
      else message.properties.set(name, value);
    }
    message.body = Buffer.from(body.repeat(repeat));
    if (end === undefined) return this.#producer.send(message);
    const transaction = this.#producer.beginTransaction();
    const receipt = await this.#producer.send(message, transaction);
    if (end === 'commit') await transaction.commit();
    if (end === 'rollback') await transaction.rollback();
    return receipt;
  }

  async recall(topic, handle) {
    return (await this.#producer.recallMessage(topic, handle)).messageId;
  }

  async checked() {
    return String(this.#checked);
  }

  async close() {
    await this.#producer.shutdown();
  }
}

function expression(text, kind) {
  return new FilterExpression(text, kind === 'sql' ? FilterType.SQL : FilterType.TAG);
}

function bodyOf(body) {
  return body.length <= LONG ? body.toString() : `${body.length}:${crypto.createHash('sha256').update(body).digest('hex')}`;
}

class OfficialConsumer {
  #taken = [];
  #waiting = [];
  #client;

  async start(kind, endpoints, security, consumerGroup, ...words) {
    if (kind === 'simple') {
      const [awaitDuration, topic, text, language] = words;
      const subscriptions = new Map([[topic, expression(text, language)]]);
      const base = options(endpoints, security);
      this.#client = new SimpleConsumer({ ...base, consumerGroup, subscriptions, awaitDuration: Number(awaitDuration) });
    } else {
      const [topic, text, language] = words;
      const subscriptions = new Map([[topic, expression(text, language)]]);
      const messageListener = { consume: message => this.#take(message) };
      this.#client = new PushConsumer({ ...options(endpoints, security), consumerGroup, subscriptions, messageListener });
    }
    await this.#client.startup();
  }

  #take(message) {
    this.#taken.push(message);
    this.#waiting.filter(each => each.count <= this.#taken.length).forEach(each => each.wake());
    const failures = Number(message.properties.get('fail') ?? 0);
    return message.deliveryAttempt > failures ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
  }

  async receive(count, millis) {
    this.#taken.push(...(await this.#client.receive(Number(count), Number(millis))));
    return String(this.#taken.length);
  }

  async ack(number) {
    await this.#client.ack(this.#taken[Number(number)]);
    return '';
  }

  async change(number, millis) {
    await this.#client.changeInvisibleDuration(this.#taken[Number(number)], Number(millis));
    return '';
  }

  async subscribe(topic, text, kind) {
    await this.#client.subscribe(topic, expression(text, kind));
    return '';
  }

  async await(count, seconds) {
    if (this.#taken.length < Number(count)) {
      await new Promise(wake => {
        const timer = setTimeout(wake, Number(seconds) * 1_000);
        this.#waiting.push({ count: Number(count), wake: () => { clearTimeout(timer); wake(); } });
      });
    }
    return String(this.#taken.length);
  }

  async taken(file) {
    write(file, this.#taken.map(message => [
      message.messageId,
      message.topic,
      bodyOf(message.body),
      message.tag ?? '',
      message.keys.join(','),
      message.messageGroup ?? '',
      message.deliveryTimestamp?.getTime() ?? '',
      message.priority ?? '',
      message.deliveryAttempt,
      ...[...message.properties].map(([name, value]) => `${name}=${value}`).sort(),
    ]));
    return '';
  }

  async close() {
    await this.#client.shutdown();
  }
}

const clients = new Map();

async function run(command, name, ...words) {
  if (command === 'producer') {
    const producer = new OfficialProducer();
    await producer.start(...words);
    clients.set(name, producer);
    return '';
  }
  if (command === 'simple' || command === 'push') {
    const consumer = new OfficialConsumer();
    await consumer.start(command, ...words);
    clients.set(name, consumer);
    return '';
  }
  const client = clients.get(name);
  const answer = await client[command](...words);
  if (command === 'close') clients.delete(name);
  return answer ?? '';
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    let answer;
    try {
      answer = `ok\t${await run(...line.split('\t'))}`;
    } catch (failure) {
      complain(failure.stack);
      answer = `error\t${String(failure).replaceAll(/\s+/g, ' ')}`;
    }
    process.stdout.write(`${answer}\n`);
  }
  // Timers of clients may still run; nothing is left to write.
  process.exit(0);
}

main();
