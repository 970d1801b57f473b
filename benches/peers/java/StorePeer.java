import java.io.File;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.SplittableRandom;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Does with Apache RocketMQ's own store what the example `measure` does with ours, and prints the same lines.
 *
 * <p>Usage: StorePeer put DIR THREADS BODY async|sync COUNT, fill DIR COUNT, settle DIR, recover DIR COUNT HOW,
 * read DIR COUNT. The
 * broker's defaults are kept but for the directory.
 */
public final class StorePeer {
  private static final int QUEUES = 4;
  private static final int LOOKUPS = 200_000;
  private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 8123);

  public static void main(String[] args) throws Exception {
    Path directory = Path.of(args[1]);
    switch (args[0]) {
      case "put":
        put(directory, Integer.parseInt(args[2]), Integer.parseInt(args[3]), args[4].equals("sync"), Long.parseLong(args[5]));
        break;
      case "fill":
        fill(directory, Long.parseLong(args[2]));
        break;
      case "settle":
        settle(directory);
        break;
      case "recover":
        recover(directory, Long.parseLong(args[2]), args[3]);
        break;
      case "read":
        read(directory, Long.parseLong(args[2]));
        break;
      default:
        throw new IllegalArgumentException(args[0]);
    }
    // Neither a shutdown nor its abort file: the caller throws the directory away.
    System.out.flush();
    Runtime.getRuntime().halt(0);
  }

  private static void put(Path directory, int threads, int len, boolean sync, long count) throws Exception {
    remove(directory);
    byte[] body = body(len);
    DefaultMessageStore store = open(directory, sync);
    store.start();
    append(store, threads, body, Math.max(count / 5, 1000), null);
    waitDispatched(store);
    long perThread = count / threads;
    long[] times = sync ? new long[(int) (perThread * threads)] : null;
    long began = System.nanoTime();
    append(store, threads, body, count, times);
    double put = (System.nanoTime() - began) / 1e9;
    waitDispatched(store);
    double dispatched = (System.nanoTime() - began) / 1e9;
    if (sync) {
      String load = "append sync, " + threads + " waiting";
      tell(load, perThread * threads / put, "msg/s");
      Arrays.sort(times);
      tell(load + ", p50", times[times.length / 2] / 1e3, "us");
      tell(load + ", p99", times[times.length * 99 / 100] / 1e3, "us");
    } else {
      String load = "append async, " + threads + " threads";
      tell(load + ", put", perThread * threads / put, "msg/s");
      tell(load + ", until dispatched", perThread * threads / dispatched, "msg/s");
    }
    store.shutdown();
    store.destroy();
    remove(directory);
  }

  /** Leaves a store behind as a process that is killed leaves it. */
  private static void fill(Path directory, long count) throws Exception {
    remove(directory);
    DefaultMessageStore store = open(directory, false);
    store.start();
    byte[] body = body(1024);
    for (long number = 0; number < count; number++) {
      PutMessageResult result = append(store, body, (int) (number % QUEUES), "k" + number);
      if (!result.isOk()) {
        throw new IllegalStateException(result.toString());
      }
    }
    waitDispatched(store);
    while (store.getFlushedWhere() < store.getMaxPhyOffset()) {
      Thread.sleep(10);
    }
    Thread.sleep(1500);
  }

  /** Recovers what fill left behind and stops cleanly. */
  private static void settle(Path directory) throws Exception {
    DefaultMessageStore store = open(directory, false);
    store.start();
    waitDispatched(store);
    store.shutdown();
  }

  /** Opens what fill left behind and looks for every key. */
  private static void recover(Path directory, long count, String how) throws Exception {
    long began = System.nanoTime();
    DefaultMessageStore store = open(directory, false);
    double elapsed = (System.nanoTime() - began) / 1e6;
    store.start();
    waitDispatched(store);
    String load = "recover, " + how;
    tell(load, elapsed, "ms");
    long found = 0;
    for (long number = 0; number < count; number++) {
      found += hasKey(store, number) ? 1 : 0;
    }
    tell(load + ", keys found", found * 100.0 / count, "%");
  }

  private static void read(Path directory, long count) throws Exception {
    DefaultMessageStore store = open(directory, false);
    store.start();
    waitDispatched(store);
    SplittableRandom random = new SplittableRandom(count);
    // The first round is for the just-in-time compiler.
    for (boolean isTold : new boolean[] {false, true}) {
      for (int batch : new int[] {32, 1}) {
        long began = System.nanoTime();
        long got = 0;
        for (int queue = 0; queue < QUEUES; queue++) {
          got += readQueue(store, queue, batch);
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        if (got != count) {
          throw new IllegalStateException("read " + got + " messages of " + count);
        }
        if (isTold) {
          tell("get, " + batch + " at once", got / seconds, "msg/s");
        }
      }
      long began = System.nanoTime();
      long found = 0;
      for (int number = 0; number < LOOKUPS; number++) {
        found += hasKey(store, random.nextLong(count)) ? 1 : 0;
      }
      double seconds = (System.nanoTime() - began) / 1e9;
      if (isTold) {
        tell("query by key", LOOKUPS / seconds, "op/s");
        tell("query by key, found", found * 100.0 / LOOKUPS, "%");
      }
      long first = store.getEarliestMessageTime("bench", 0);
      long last = store.getMessageStoreTimeStamp("bench", 0, store.getMaxOffsetInQueue("bench", 0) - 1);
      long sum = 0;
      began = System.nanoTime();
      for (int number = 0; number < LOOKUPS; number++) {
        sum += store.getOffsetInQueueByTime("bench", number % QUEUES, first + random.nextLong(last - first + 1));
      }
      seconds = (System.nanoTime() - began) / 1e9;
      if (isTold && sum > 0) {
        tell("offset by time", LOOKUPS / seconds, "op/s");
      }
    }
  }

  private static long readQueue(DefaultMessageStore store, int queue, int batch) {
    long got = 0;
    long at = 0;
    while (true) {
      GetMessageResult result = store.getMessage("peer", "bench", queue, at, batch, null);
      int count = result.getMessageCount();
      at = result.getNextBeginOffset();
      result.release();
      if (count == 0) {
        return got;
      }
      got += count;
    }
  }

  private static boolean hasKey(DefaultMessageStore store, long number) {
    QueryMessageResult result = store.queryMessage("bench", "k" + number, 32, 0, Long.MAX_VALUE);
    boolean found = !result.getMessageMapedList().isEmpty();
    result.release();
    return found;
  }

  private static DefaultMessageStore open(Path directory, boolean sync) throws Exception {
    MessageStoreConfig config = new MessageStoreConfig();
    config.setStorePathRootDir(directory.toString());
    config.setStorePathCommitLog(directory + File.separator + "commitlog");
    config.setHaListenPort(0);
    config.setDiskMaxUsedSpaceRatio(95);
    config.setFlushDiskType(sync ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
    BrokerStatsManager stats = new BrokerStatsManager("peer", true);
    DefaultMessageStore store =
        new DefaultMessageStore(
            config, stats, (topic, queue, offset, tags, time, bits, properties) -> {}, new BrokerConfig(), new ConcurrentHashMap<>());
    if (!store.load()) {
      throw new IllegalStateException("the store does not load");
    }
    return store;
  }

  private static void append(DefaultMessageStore store, int threads, byte[] body, long count, long[] times)
      throws InterruptedException {
    long perThread = count / threads;
    AtomicReference<String> failure = new AtomicReference<>();
    Thread[] running = new Thread[threads];
    for (int thread = 0; thread < threads; thread++) {
      int id = thread;
      running[thread] =
          new Thread(
              () -> {
                for (long number = 0; number < perThread && failure.get() == null; number++) {
                  long began = System.nanoTime();
                  PutMessageResult result = append(store, body, (int) ((number + id) % QUEUES), "k" + (number * 64 + id));
                  if (!result.isOk()) {
                    failure.set(result.toString());
                  }
                  if (times != null) {
                    times[(int) (number * threads + id)] = System.nanoTime() - began;
                  }
                }
              });
      running[thread].start();
    }
    for (Thread thread : running) {
      thread.join();
    }
    if (failure.get() != null) {
      throw new IllegalStateException(failure.get());
    }
  }

  private static PutMessageResult append(DefaultMessageStore store, byte[] body, int queue, String key) {
    PutMessageResult result;
    do {
      result = store.putMessage(message(body, queue, key));
    } while (result.getPutMessageStatus() == PutMessageStatus.OS_PAGE_CACHE_BUSY);
    return result;
  }

  private static MessageExtBrokerInner message(byte[] body, int queue, String key) {
    MessageExtBrokerInner message = new MessageExtBrokerInner();
    message.setTopic("bench");
    message.setTags("TAG1");
    message.setKeys(key);
    message.setBody(body);
    message.setQueueId(queue);
    message.setBornTimestamp(1_700_000_000_000L);
    message.setBornHost(HOST);
    message.setStoreHost(HOST);
    message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
    return message;
  }

  private static byte[] body(int len) {
    byte[] body = new byte[len];
    for (int at = 0; at < len; at++) {
      body[at] = (byte) ('a' + at % 26);
    }
    return body;
  }

  private static void waitDispatched(DefaultMessageStore store) throws InterruptedException {
    while (store.dispatchBehindBytes() > 0) {
      Thread.sleep(1);
    }
  }

  private static void tell(String load, double value, String unit) {
    System.out.printf("java-store %s\t%.4f\t%s%n", load, value, unit);
  }

  private static void remove(Path directory) throws Exception {
    if (!Files.exists(directory)) {
      return;
    }
    try (Stream<Path> paths = Files.walk(directory)) {
      for (Path path : (Iterable<Path>) paths.sorted(Comparator.reverseOrder())::iterator) {
        Files.delete(path);
      }
    }
  }
}
