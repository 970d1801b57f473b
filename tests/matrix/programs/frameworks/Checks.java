package matrix;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/** Runs the checks of a program beside each other, prints the verdict of each, and keeps what its listeners received. */
final class Checks {
    private static final long LIMIT_MS = 100_000;
    private static final long PAUSE_MS = 50;

    /** What a check does; it returns what it saw, or throws. */
    interface Check {
        String run() throws Exception;
    }

    /** What a listener received. */
    record Received(String body, long atMs, int attempt) {
    }

    static final String RUN = System.getenv("MATRIX_RUN");

    private final Map<String, List<Received>> received = new ConcurrentHashMap<>();
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final List<String> started = new ArrayList<>();

    /** The topic and the group of a check. */
    static String topic(String check) {
        return check + "_" + RUN;
    }

    /** Called by the listener of a check; says how many times this body came before. */
    int add(String check, String body) {
        List<Received> all = received(check);
        int attempt = (int) all.stream().filter(each -> each.body().equals(body)).count();
        all.add(new Received(body, System.currentTimeMillis(), attempt));
        return attempt;
    }

    List<Received> received(String check) {
        return received.computeIfAbsent(check, ignored -> new CopyOnWriteArrayList<>());
    }

    List<String> bodies(String check) {
        return received(check).stream().map(Received::body).toList();
    }

    /** Waits until a check received at least these bodies, in whatever order; fails if another one came. */
    String receives(String check, Collection<String> bodies) throws InterruptedException {
        TreeSet<String> wanted = new TreeSet<>(bodies);
        long end = System.currentTimeMillis() + LIMIT_MS;
        while (!new TreeSet<>(bodies(check)).containsAll(wanted) && System.currentTimeMillis() < end) {
            Thread.sleep(PAUSE_MS);
        }
        TreeSet<String> seen = new TreeSet<>(bodies(check));
        expect(seen.equals(wanted), "received " + seen + " instead of " + wanted);
        return seen.size() + " received";
    }

    static void expect(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    void start(String name, Check check) {
        started.add(name);
        threads.submit(() -> {
            try {
                String seen = check.run();
                System.out.println("CHECK " + name + " ok " + oneLine(seen));
            } catch (Throwable error) {
                error.printStackTrace();
                System.out.println("CHECK " + name + " FAILED " + oneLine(String.valueOf(error)));
            }
        });
    }

    /** Waits for all checks and ends the program: frameworks keep threads that are no concern of the checks. */
    void end() throws InterruptedException {
        threads.shutdown();
        boolean done = threads.awaitTermination(160, TimeUnit.SECONDS);
        System.out.flush();
        Runtime.getRuntime().halt(done ? 0 : 1);
    }

    private static String oneLine(String text) {
        return text.replaceAll("\\s+", " ").trim();
    }
}
