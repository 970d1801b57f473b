import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;

/** A message as a line of text: one to be stored, and one that was read. */
final class Line {
  private static final HexFormat HEX = HexFormat.of();

  private Line() {}

  /**
   * Topic, queue, flag, system flag, born time, born host, store host, reconsume times, offset of the half message,
   * properties, body; hosts are hex and a port, properties hex; of a body its length and the byte that it repeats.
   */
  static MessageExtBrokerInner parse(String line) throws Exception {
    String[] words = line.split("\t", -1);
    MessageExtBrokerInner message = new MessageExtBrokerInner();
    message.setTopic(words[0]);
    message.setQueueId(Integer.parseInt(words[1]));
    message.setFlag(Integer.parseInt(words[2]));
    message.setSysFlag(Integer.parseInt(words[3]));
    message.setBornTimestamp(Long.parseLong(words[4]));
    message.setBornHost(host(words[5]));
    message.setStoreHost(host(words[6]));
    message.setReconsumeTimes(Integer.parseInt(words[7]));
    message.setPreparedTransactionOffset(Long.parseLong(words[8]));
    String properties = new String(HEX.parseHex(words[9]), StandardCharsets.UTF_8);
    MessageAccessor.setProperties(message, MessageDecoder.string2messageProperties(properties));
    message.setPropertiesString(properties);
    byte[] body = new byte[Integer.parseInt(words[10])];
    Arrays.fill(body, (byte) Integer.parseInt(words[11]));
    message.setBody(body);
    return message;
  }

  /** Physical offset, SHA-256 of the record's bytes, and each field as Java decodes it. */
  static String of(ByteBuffer record) throws Exception {
    byte[] bytes = new byte[record.remaining()];
    record.duplicate().get(bytes);
    MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(bytes), true, false);
    return String.join(
        "\t",
        String.valueOf(message.getCommitLogOffset()),
        sha(bytes),
        message.getTopic(),
        String.valueOf(message.getQueueId()),
        String.valueOf(message.getQueueOffset()),
        String.valueOf(message.getStoreSize()),
        String.valueOf(message.getFlag()),
        String.valueOf(message.getSysFlag()),
        String.valueOf(message.getBornTimestamp()),
        host((InetSocketAddress) message.getBornHost()),
        String.valueOf(message.getStoreTimestamp()),
        host((InetSocketAddress) message.getStoreHost()),
        String.valueOf(message.getReconsumeTimes()),
        String.valueOf(message.getPreparedTransactionOffset()),
        String.valueOf(message.getBody() == null ? 0 : message.getBody().length),
        sha(message.getBody() == null ? new byte[0] : message.getBody()),
        sha(properties(message)));
  }

  private static byte[] properties(MessageExt message) {
    StringBuilder text = new StringBuilder();
    if (message.getProperties() != null) {
      new TreeMap<>(message.getProperties())
          .forEach((name, value) -> text.append(name).append('\u0001').append(value).append('\u0002'));
    }
    return text.toString().getBytes(StandardCharsets.UTF_8);
  }

  private static InetSocketAddress host(String text) throws Exception {
    int colon = text.indexOf(':');
    return new InetSocketAddress(
        InetAddress.getByAddress(HEX.parseHex(text.substring(0, colon))), Integer.parseInt(text.substring(colon + 1)));
  }

  private static String host(InetSocketAddress host) {
    return HEX.formatHex(host.getAddress().getAddress()) + ":" + host.getPort();
  }

  private static String sha(byte[] bytes) throws Exception {
    return HEX.formatHex(MessageDigest.getInstance("SHA-256").digest(bytes), 0, 12);
  }
}
