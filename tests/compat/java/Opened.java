import java.io.BufferedWriter;
import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** An open store of Apache RocketMQ, and what a test asks of it. */
class Opened {
  private final MessageStore store;

  Opened(MessageStore store) {
    this.store = store;
  }

  static Opened store(String directory, String[] options) throws Exception {
    BrokerStatsManager stats = new BrokerStatsManager("peer", true);
    DefaultMessageStore store =
        new DefaultMessageStore(
            config(directory, options),
            stats,
            (topic, queue, offset, tags, time, bits, properties) -> {},
            new BrokerConfig(),
            new ConcurrentHashMap<>());
    if (!store.load()) {
      throw new IllegalStateException("the store does not load");
    }
    store.start();
    return new Opened(store);
  }

  static MessageStoreConfig config(String directory, String[] options) {
    MessageStoreConfig config = new MessageStoreConfig();
    config.setStorePathRootDir(directory);
    config.setStorePathCommitLog(directory + File.separator + "commitlog");
    config.setHaListenPort(0);
    config.setDiskMaxUsedSpaceRatio(95);
    Properties given = new Properties();
    for (String option : options) {
      given.setProperty(option.substring(0, option.indexOf('=')), option.substring(option.indexOf('=') + 1));
    }
    MixAll.properties2Object(given, config);
    return config;
  }

  void close() {
    store.shutdown();
  }

  String answer(String command, String[] args) throws Exception {
    switch (command) {
      case "put":
        return put(Path.of(args[0]), Path.of(args[1]));
      case "queues":
        return queues(Path.of(args[0]));
      case "places":
        return places(Path.of(args[0]), Path.of(args[1]));
      case "keys":
        return keys(Path.of(args[0]), Path.of(args[1]));
      case "settle":
        return settle();
      default:
        throw new IllegalArgumentException(command);
    }
  }

  private String settle() throws InterruptedException {
    while (store.dispatchBehindBytes() > 0) {
      Thread.sleep(1);
    }
    return String.valueOf(store.getMaxPhyOffset());
  }

  private String put(Path in, Path out) throws Exception {
    try (BufferedWriter lines = Files.newBufferedWriter(out)) {
      for (String line : Files.readAllLines(in, StandardCharsets.UTF_8)) {
        PutMessageResult result = store.putMessage(Line.parse(line));
        if (!result.isOk()) {
          throw new IllegalStateException(result + " for " + line.substring(0, Math.min(200, line.length())));
        }
        lines.write(
            result.getAppendMessageResult().getLogicsOffset() + "\t" + result.getAppendMessageResult().getWroteOffset() + "\n");
      }
    }
    return settle();
  }

  private String queues(Path out) throws Exception {
    long count = 0;
    try (BufferedWriter lines = Files.newBufferedWriter(out)) {
      Map<String, ConcurrentMap<Integer, ConsumeQueueInterface>> topics = new TreeMap<>(store.getQueueStore().getConsumeQueueTable());
      for (String topic : topics.keySet()) {
        for (int queue : new TreeMap<>(topics.get(topic)).keySet()) {
          count += queue(topic, queue, lines);
        }
      }
    }
    return String.valueOf(count);
  }

  private long queue(String topic, int queue, BufferedWriter lines) throws Exception {
    long count = 0;
    long at = store.getMinOffsetInQueue(topic, queue);
    long end = store.getMaxOffsetInQueue(topic, queue);
    while (at < end) {
      GetMessageResult got = store.getMessage("peer", topic, queue, at, 32, null);
      try {
        if (got.getMessageCount() == 0) {
          throw new IllegalStateException(got.getStatus() + " at " + topic + " " + queue + " " + at);
        }
        for (int number = 0; number < got.getMessageCount(); number++) {
          long offset = got.getMessageQueueOffset().get(number);
          lines.write(topic + "\t" + queue + "\t" + offset + "\t" + Line.of(got.getMessageBufferList().get(number)) + "\n");
          count++;
        }
        at = got.getNextBeginOffset();
      } finally {
        got.release();
      }
    }
    return count;
  }

  private String places(Path in, Path out) throws Exception {
    try (BufferedWriter lines = Files.newBufferedWriter(out)) {
      for (String line : Files.readAllLines(in)) {
        SelectMappedBufferResult found = store.selectOneMessageByOffset(Long.parseLong(line));
        try {
          lines.write((found == null ? "none" : Line.of(found.getByteBuffer())) + "\n");
        } finally {
          if (found != null) {
            found.release();
          }
        }
      }
    }
    return "";
  }

  private String keys(Path in, Path out) throws Exception {
    try (BufferedWriter lines = Files.newBufferedWriter(out)) {
      for (String line : Files.readAllLines(in, StandardCharsets.UTF_8)) {
        String[] words = line.split("\t");
        QueryMessageResult found = store.queryMessage(words[0], words[1], 64, 0, Long.MAX_VALUE);
        String places =
            found.getMessageBufferList().stream().map(buffer -> buffer.getLong(buffer.position() + 28)).distinct().sorted().map(String::valueOf)
                .reduce((left, right) -> left + " " + right).orElse("");
        found.release();
        lines.write(places + "\n");
      }
    }
    return "";
  }
}
