import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/**
 * Apache RocketMQ's own store and broker, driven line by line: a command with its arguments joined by tabs comes on
 * standard input, one line goes back: {@code ok}, or {@code error} with the reason.
 *
 * <p>One process holds any number of stores, by name, so that a test pays for the virtual machine once.
 *
 * <pre>
 * open NAME DIR KEY=VALUE…    the store alone, as the options of MessageStoreConfig say
 * broker NAME DIR KEY=VALUE…  a whole broker around it, with topics, groups and offsets
 * put NAME IN OUT             stores the messages of the file IN, writes where each lies to OUT
 * queues NAME OUT             writes every message of every queue to OUT, read by queue offset
 * places NAME IN OUT          writes the message at each physical offset of IN to OUT
 * keys NAME IN OUT            writes to OUT where the messages of each topic and key of IN lie
 * settle NAME                 waits until everything is dispatched
 * sql NAME IN OUT             evaluates each SQL92 expression of IN; see {@link Sql}
 * … for a broker: topic, group, commit, committed, names: see {@link Broker}
 * close NAME
 * </pre>
 */
public final class Peer {
  public static void main(String[] args) throws Exception {
    Map<String, Opened> stores = new HashMap<>();
    Commands.serve((command, name, words) -> run(stores, command, name, words));
  }

  private static String run(Map<String, Opened> stores, String command, String name, String[] args) throws Exception {
    switch (command) {
      case "open":
        stores.put(name, Opened.store(args[0], Arrays.copyOfRange(args, 1, args.length)));
        return "";
      case "broker":
        stores.put(name, Broker.start(args[0], Arrays.copyOfRange(args, 1, args.length)));
        return "";
      case "sql":
        Sql.evaluate(args[0], args[1]);
        return "";
      case "close":
        stores.remove(name).close();
        return "";
      default:
        return stores.get(name).answer(command, args);
    }
  }
}
