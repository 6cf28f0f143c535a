import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The topology `pulse_counting` written for Kafka Streams. One argument: a properties file with the Streams
 * configuration and the `bench.*` values. Runs until SIGTERM. With `bench.query.port` it serves its store over HTTP.
 */
public final class WindowedCount {
  public static final class Pulse {
    @JsonProperty("patient_id") public String patientId;
    @JsonProperty("beat_ms") public long beatMs;
    @JsonProperty("ibi_ms") public int ibiMs;
    @JsonProperty("recording") public String recording;
  }

  public static final class PulseCount {
    @JsonProperty("patient_id") public final String patientId;
    @JsonProperty("window_start") public final long windowStart;
    @JsonProperty("window_end") public final long windowEnd;
    @JsonProperty("pulses") public final long pulses;

    PulseCount(String patientId, long windowStart, long windowEnd, long pulses) {
      this.patientId = patientId;
      this.windowStart = windowStart;
      this.windowEnd = windowEnd;
      this.pulses = pulses;
    }
  }

  /** Writes how far each copy of another client's store is; never called without standby replicas. */
  private static final class StandbyProgress implements StandbyUpdateListener {
    @Override
    public void onUpdateStart(TopicPartition changelog, String store, long startingOffset) {}

    @Override
    public void onBatchLoaded(
        TopicPartition changelog, String store, TaskId task, long lastOffset, long records, long endOffset) {
      System.err.println("standby " + changelog.partition() + " at " + lastOffset);
    }

    @Override
    public void onUpdateSuspended(
        TopicPartition changelog, String store, long offset, long endOffset, SuspendReason reason) {
      System.err.println("standby " + changelog.partition() + " ended");
    }
  }

  private static <T> Serde<T> json(Class<T> type) {
    ObjectMapper mapper = new ObjectMapper();
    ObjectReader reader = mapper.readerFor(type);
    ObjectWriter writer = mapper.writerFor(type);
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            return writer.writeValueAsBytes(value);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        },
        (topic, bytes) -> {
          try {
            return reader.readValue(bytes);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  private static long millis(Properties properties, String name) {
    return Long.parseLong(properties.getProperty(name));
  }

  public static void main(String[] args) throws Exception {
    Properties properties = new Properties();
    try (Reader reader = Files.newBufferedReader(Path.of(args[0]))) {
      properties.load(reader);
    }
    Duration size = Duration.ofMillis(millis(properties, "bench.window.ms"));
    Duration grace = Duration.ofMillis(millis(properties, "bench.grace.ms"));
    Duration retention = Duration.ofMillis(millis(properties, "bench.retention.ms"));

    StreamsBuilder builder = new StreamsBuilder();
    builder
        .stream(
            properties.getProperty("bench.input"),
            Consumed.with(Serdes.String(), json(Pulse.class))
                .withTimestampExtractor((record, partitionTime) -> ((Pulse) record.value()).beatMs))
        .groupByKey(Grouped.with(Serdes.String(), json(Pulse.class)))
        .windowedBy(TimeWindows.ofSizeAndGrace(size, grace))
        .count(
            Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("pulse-counts")
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long())
                .withRetention(retention))
        .toStream()
        .map(
            (key, count) ->
                KeyValue.pair(
                    key.key(), new PulseCount(key.key(), key.window().start(), key.window().end(), count)))
        .to(properties.getProperty("bench.output"), Produced.with(Serdes.String(), json(PulseCount.class)));

    KafkaStreams streams = new KafkaStreams(builder.build(), properties);
    streams.setStateListener((state, before) -> System.err.println("state " + before + " -> " + state));
    streams.setStandbyUpdateListener(new StandbyProgress());
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    CountDownLatch closed = new CountDownLatch(1);
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  streams.close(Duration.ofSeconds(30));
                  closed.countDown();
                }));
    streams.start();
    if (properties.containsKey("bench.query.port")) {
      int port = Integer.parseInt(properties.getProperty("bench.query.port"));
      int threads = Integer.parseInt(properties.getProperty("bench.query.threads"));
      StoreServer.start(streams, "pulse-counts", size.toMillis(), port, threads);
    }
    closed.await();
  }
}
