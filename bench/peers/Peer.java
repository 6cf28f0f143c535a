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
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.StandbyUpdateListener;
import org.apache.kafka.streams.processor.TaskId;
import org.apache.kafka.streams.state.WindowStore;

/** The common part of all programs: their configuration, JSON records with event time, and a client that runs until SIGTERM. */
final class Peer {
  /** An input record. */
  public static final class Pulse {
    @JsonProperty("patient_id") public String patientId;
    @JsonProperty("beat_ms") public long beatMs;
    @JsonProperty("ibi_ms") public int ibiMs;
    @JsonProperty("recording") public String recording;
  }

  /** The count of a window. */
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

  final Properties properties = new Properties();
  final StreamsBuilder builder = new StreamsBuilder();

  /** Reads the one argument: a properties file with the Streams configuration and the `bench.*` values. */
  Peer(String[] args) throws IOException {
    try (Reader reader = Files.newBufferedReader(Path.of(args[0]))) {
      properties.load(reader);
    }
  }

  static <T> Serde<T> json(Class<T> type) {
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

  Duration duration(String name) {
    return Duration.ofMillis(Long.parseLong(properties.getProperty(name)));
  }

  /** The pulses of the first source. */
  KStream<String, Pulse> pulses() {
    return builder.stream(
        sources()[0],
        Consumed.with(Serdes.String(), json(Pulse.class))
            .withTimestampExtractor((record, partitionTime) -> ((Pulse) record.value()).beatMs));
  }

  String[] sources() {
    return properties.getProperty("bench.inputs").split(",");
  }

  <T> void write(KStream<String, T> results, Class<T> type) {
    results.to(properties.getProperty("bench.output"), Produced.with(Serdes.String(), json(type)));
  }

  /** The counts of pulses per window, in a store with this name. */
  KTable<Windowed<String>, Long> windowedCounts(String store) {
    return pulses()
        .groupByKey(Grouped.with(Serdes.String(), json(Pulse.class)))
        .windowedBy(TimeWindows.ofSizeAndGrace(duration("bench.window.ms"), duration("bench.grace.ms")))
        .count(
            Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(store)
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long())
                .withRetention(duration("bench.retention.ms")));
  }

  void writeCounts(KStream<Windowed<String>, Long> counts) {
    write(
        counts.map(
            (key, count) ->
                KeyValue.pair(
                    key.key(), new PulseCount(key.key(), key.window().start(), key.window().end(), count))),
        PulseCount.class);
  }

  /** Starts the client. It is closed at SIGTERM, for which the caller has to wait. */
  KafkaStreams start(CountDownLatch closed) {
    KafkaStreams streams = new KafkaStreams(builder.build(), properties);
    streams.setStateListener((state, before) -> System.err.println("state " + before + " -> " + state));
    streams.setStandbyUpdateListener(new StandbyProgress());
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
          return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
    Runtime.getRuntime()
        .addShutdownHook(
            new Thread(
                () -> {
                  streams.close(Duration.ofSeconds(30));
                  closed.countDown();
                }));
    streams.start();
    return streams;
  }

  /** Runs until SIGTERM. */
  void run() throws InterruptedException {
    CountDownLatch closed = new CountDownLatch(1);
    start(closed);
    closed.await();
  }
}
