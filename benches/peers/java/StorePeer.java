import java.io.File;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Comparator;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Appends to Apache RocketMQ's own store what the example `measure` appends to ours, and prints the same lines.
 *
 * <p>Usage: StorePeer DIR THREADS BODY async|sync COUNT. The broker's defaults are kept but for the directory.
 */
public final class StorePeer {
  private static final int QUEUES = 4;
  private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 8123);

  public static void main(String[] args) throws Exception {
    Path directory = Path.of(args[0]);
    int threads = Integer.parseInt(args[1]);
    byte[] body = new byte[Integer.parseInt(args[2])];
    for (int at = 0; at < body.length; at++) {
      body[at] = (byte) ('a' + at % 26);
    }
    boolean sync = args[3].equals("sync");
    long count = Long.parseLong(args[4]);

    remove(directory);
    DefaultMessageStore store = open(directory, sync);
    append(store, threads, body, Math.max(count / 5, 1000), null);
    waitDispatched(store);
    long perThread = count / threads;
    long[] times = sync ? new long[(int) (perThread * threads)] : null;
    long began = System.nanoTime();
    append(store, threads, body, count, times);
    double put = (System.nanoTime() - began) / 1e9;
    waitDispatched(store);
    double dispatched = (System.nanoTime() - began) / 1e9;

    String name = "java-store put " + args[3] + " t=" + threads + " body=" + body.length + " +key";
    print(name, perThread * threads / put, "msg/s");
    if (sync) {
      Arrays.sort(times);
      print(name + " p50", times[times.length / 2] / 1e3, "us");
      print(name + " p99", times[times.length * 99 / 100] / 1e3, "us");
    } else {
      print(name + " (until dispatched)", perThread * threads / dispatched, "msg/s");
    }
    store.shutdown();
    store.destroy();
    remove(directory);
    System.exit(0);
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
    store.start();
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
                  PutMessageResult result;
                  do {
                    result = store.putMessage(message(body, (int) ((number + id) % QUEUES), "k" + (number * 64 + id)));
                  } while (result.getPutMessageStatus() == PutMessageStatus.OS_PAGE_CACHE_BUSY);
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

  private static void waitDispatched(DefaultMessageStore store) throws InterruptedException {
    while (store.dispatchBehindBytes() > 0) {
      Thread.sleep(1);
    }
  }

  private static void print(String name, double value, String unit) {
    System.out.printf("%s\t%.1f\t%s%n", name, value, unit);
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
