import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads the input, does nothing with it, and commits its position: what any program that reads this input needs at least. */
public final class RawConsumer {
  private static final Duration POLL = Duration.ofMillis(200);
  private static final long COMMIT_EVERY_NS = 200_000_000L;
  private static final int RECORDS_PER_POLL = 50_000;

  public static void main(String[] args) throws Exception {
    Properties given = new Properties();
    try (Reader reader = Files.newBufferedReader(Path.of(args[0]))) {
      given.load(reader);
    }
    KafkaConsumer<byte[], byte[]> consumer =
        new KafkaConsumer<>(
            Map.of(
                ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, given.getProperty("bootstrap.servers"),
                ConsumerConfig.GROUP_ID_CONFIG, given.getProperty("application.id"),
                ConsumerConfig.GROUP_INSTANCE_ID_CONFIG, given.getProperty("group.instance.id"),
                ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest",
                ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false,
                ConsumerConfig.ISOLATION_LEVEL_CONFIG, "read_committed",
                ConsumerConfig.MAX_POLL_RECORDS_CONFIG, RECORDS_PER_POLL),
            new ByteArrayDeserializer(),
            new ByteArrayDeserializer());
    Thread reading = Thread.currentThread();
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  consumer.wakeup();
                  try {
                    reading.join();
                  } catch (InterruptedException error) {
                    Thread.currentThread().interrupt();
                  }
                }));
    try (consumer) {
      consumer.subscribe(List.of(given.getProperty("bench.inputs").split(",")));
      read(consumer);
    } catch (WakeupException stopped) {
      // SIGTERM
    }
  }

  private static void read(KafkaConsumer<byte[], byte[]> consumer) {
    boolean isTold = false;
    long committed = System.nanoTime();
    while (true) {
      consumer.poll(POLL);
      if (!isTold && !consumer.assignment().isEmpty()) {
        System.err.println("state REBALANCING -> RUNNING");
        isTold = true;
      }
      if (isTold && System.nanoTime() - committed >= COMMIT_EVERY_NS) {
        consumer.commitSync();
        committed = System.nanoTime();
      }
    }
  }
}
