import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.Reader;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.ValueJoinerWithKey;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;

/**
 * The cases of `tests/peers` written for Kafka Streams. Arguments: the name of the case, and a properties file with the
 * Streams configuration and `peers.input.<role>`, `peers.output`. Event time is the record's timestamp. Runs until
 * SIGTERM.
 */
public final class Peers {
  private static final Duration SIZE = Duration.ofSeconds(60);
  private static final Duration ADVANCE = Duration.ofSeconds(20);
  private static final Duration GRACE = Duration.ofSeconds(5);
  private static final Duration GAP = Duration.ofSeconds(30);
  private static final Duration DIFFERENCE = Duration.ofSeconds(20);
  private static final Duration APART = Duration.ofSeconds(60);
  private static final Duration JOIN_GRACE = Duration.ofSeconds(10);
  private static final int GROUPS = 499;
  private static final int MAX_ENTRIES = 60;
  private static final Duration TTL = Duration.ofMinutes(50);
  private static final ObjectMapper MAPPER = new ObjectMapper();

  /** One input record. */
  public static final class Event {
    @JsonProperty("id") public String id;
    @JsonProperty("ts") public long ts;
    @JsonProperty("v") public int v;
  }

  private final StreamsBuilder builder = new StreamsBuilder();
  private final Serde<Event> events = serde(MAPPER.readerFor(Event.class), MAPPER.writerFor(Event.class));
  private final Serde<Map<String, Object>> rows =
      serde(MAPPER.readerFor(new TypeReference<Map<String, Object>>() {}), MAPPER.writer());
  private final Properties properties;

  private Peers(Properties properties) {
    this.properties = properties;
  }

  private static <T> Serde<T> serde(ObjectReader reader, ObjectWriter writer) {
    return Serdes.serdeFrom(
        (topic, value) -> {
          try {
            return value == null ? null : writer.writeValueAsBytes(value);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        },
        (topic, bytes) -> {
          try {
            return bytes == null ? null : reader.readValue(bytes);
          } catch (IOException error) {
            throw new UncheckedIOException(error);
          }
        });
  }

  private KStream<String, Event> stream(String role) {
    return builder.stream(topic(role), Consumed.with(Serdes.String(), events));
  }

  private KTable<String, Event> table(String role) {
    Materialized<String, Event, KeyValueStore<Bytes, byte[]>> store = Materialized.as("table-" + role);
    if (role.equals("left") || role.equals("right")) {
      // With caches a key that both tables delete between two commits keeps its joined row for ever: when either deletion
      // leaves its cache the other table's row is gone already, and the join sees nothing to delete.
      store = store.withCachingDisabled();
    }
    return builder.table(topic(role), Consumed.with(Serdes.String(), events), store);
  }

  private String topic(String role) {
    return properties.getProperty("peers.input." + role);
  }

  private KGroupedStream<String, Event> grouped() {
    return grouped(stream("in"));
  }

  private KGroupedStream<String, Event> grouped(KStream<String, Event> stream) {
    return stream.groupByKey(Grouped.with(Serdes.String(), events));
  }

  private void write(KStream<String, Map<String, Object>> results) {
    write(results, "peers.output");
  }

  private void write(KStream<String, Map<String, Object>> results, String output) {
    results.to(properties.getProperty(output), Produced.with(Serdes.String(), rows));
  }

  private void writeCounts(KTable<Windowed<String>, Long> counts) {
    // A session that was merged into another is deleted under its old start and end. The record's key alone could not
    // say which, so those are left out here, and the reader drops what lies inside another session.
    write(
        counts
            .toStream()
            .filter((window, count) -> count != null)
            .map((window, count) -> KeyValue.pair(window.key(), counted(window, count))));
  }

  private static Map<String, Object> counted(Windowed<String> window, long count) {
    Map<String, Object> row = new LinkedHashMap<>();
    row.put("id", window.key());
    row.put("window_start", window.window().start());
    row.put("window_end", window.window().end());
    row.put("count", count);
    return row;
  }

  private static Map<String, Object> pair(String key, Event left, Event right) {
    Map<String, Object> row = new LinkedHashMap<>();
    row.put("id", key);
    row.put("lv", left == null ? null : left.v);
    row.put("rv", right == null ? null : right.v);
    return row;
  }

  private static final ValueJoinerWithKey<String, Event, Event, Map<String, Object>> PAIR = Peers::pair;

  /** Joins of tables do not say the key; one of the rows does. */
  private static final ValueJoiner<Event, Event, Map<String, Object>> ROWS =
      (left, right) -> pair((left == null ? right : left).id, left, right);

  private static Map<String, Object> group(String key, long count) {
    Map<String, Object> row = new LinkedHashMap<>();
    row.put("id", key);
    row.put("count", count);
    return row;
  }

  private static Map<String, Object> latest(String key, Event event) {
    if (event == null) {
      return null;
    }
    Map<String, Object> row = new LinkedHashMap<>();
    row.put("id", key);
    row.put("v", event.v);
    return row;
  }

  /**
   * Answers a question, a record whose v is below 0, with what its key has in a store that forgets. Kafka Streams has no TTL,
   * so it is here: a key that was not written for longer than this, in stream time, is gone.
   */
  private static final class Memory extends ContextualFixedKeyProcessor<String, Event, Map<String, Object>> {
    private final long ttlMs;
    private TimestampedKeyValueStore<String, Event> store;

    private Memory(long ttlMs) {
      this.ttlMs = ttlMs;
    }

    @Override
    public void init(FixedKeyProcessorContext<String, Map<String, Object>> context) {
      super.init(context);
      store = context.getStateStore("memory");
    }

    @Override
    public void process(FixedKeyRecord<String, Event> record) {
      long now = context().currentStreamTimeMs();
      if (record.value().v >= 0) {
        store.put(record.key(), ValueAndTimestamp.make(record.value(), now));
        return;
      }
      ValueAndTimestamp<Event> held = store.get(record.key());
      if (held != null && now - held.timestamp() > ttlMs) {
        store.delete(record.key());
        held = null;
      }
      Event known = ValueAndTimestamp.getValueOrNull(held);
      context().forward(record.withValue(pair(record.key(), record.value(), known)));
    }
  }

  private KStream<String, Map<String, Object>> answers(KeyValueBytesStoreSupplier store, long ttlMs) {
    builder.addStateStore(Stores.timestampedKeyValueStoreBuilder(store, Serdes.String(), events));
    return stream("in").processValues(() -> new Memory(ttlMs), "memory");
  }

  private void buildBacklog(TimeWindows windows, Joined<String, Event, Event> looked) {
    KStream<String, Event> stream = stream("stream");
    writeCounts(grouped(stream).windowedBy(windows).count());
    write(stream.leftJoin(table("table"), PAIR, looked), "peers.output.joined");
  }

  private void build(String name) {
    TimeWindows tumbling = TimeWindows.ofSizeAndGrace(SIZE, GRACE);
    JoinWindows near = JoinWindows.ofTimeDifferenceAndGrace(APART, JOIN_GRACE);
    StreamJoined<String, Event, Event> sides = StreamJoined.with(Serdes.String(), events, events);
    Joined<String, Event, Event> looked = Joined.with(Serdes.String(), events, events);
    switch (name) {
      case "tumbling" -> writeCounts(grouped().windowedBy(tumbling).count());
      case "hopping" -> writeCounts(grouped().windowedBy(tumbling.advanceBy(ADVANCE)).count());
      case "sliding" ->
          writeCounts(
              grouped().windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(DIFFERENCE, GRACE)).count());
      case "session" ->
          writeCounts(grouped().windowedBy(SessionWindows.ofInactivityGapAndGrace(GAP, GRACE)).count());
      case "suppress" ->
          writeCounts(
              grouped()
                  .windowedBy(tumbling)
                  .count()
                  .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())));
      case "backlog" -> buildBacklog(tumbling, looked);
      case "rekey" ->
          write(
              stream("in")
                  .groupBy(
                      (key, event) -> "g" + event.v % GROUPS,
                      Grouped.<String, Event>as("by-group").withKeySerde(Serdes.String()).withValueSerde(events))
                  .count()
                  .toStream()
                  .mapValues(Peers::group));
      case "stream-stream" -> write(stream("left").join(stream("right"), PAIR, near, sides));
      case "stream-stream-left" -> write(stream("left").leftJoin(stream("right"), PAIR, near, sides));
      case "stream-stream-outer" -> write(stream("left").outerJoin(stream("right"), PAIR, near, sides));
      case "stream-table" -> write(stream("stream").join(table("table"), PAIR, looked));
      case "stream-table-left" -> write(stream("stream").leftJoin(table("table"), PAIR, looked));
      case "table-table" -> write(table("left").join(table("right"), ROWS).toStream());
      case "table-table-left" -> write(table("left").leftJoin(table("right"), ROWS).toStream());
      case "table-table-outer" -> write(table("left").outerJoin(table("right"), ROWS).toStream());
      case "lru" -> write(answers(Stores.lruMap("memory", MAX_ENTRIES), Long.MAX_VALUE));
      case "ttl" -> write(answers(Stores.persistentTimestampedKeyValueStore("memory"), TTL.toMillis()));
      case "table" -> write(table("in").toStream().mapValues(Peers::latest));
      default -> throw new IllegalArgumentException("no case " + name);
    }
  }

  public static void main(String[] args) throws Exception {
    Properties properties = new Properties();
    try (Reader reader = Files.newBufferedReader(Path.of(args[1]))) {
      properties.load(reader);
    }
    Peers peers = new Peers(properties);
    peers.build(args[0]);
    KafkaStreams streams = new KafkaStreams(peers.builder.build(), properties);
    streams.setStateListener((state, before) -> System.err.println("state " + before + " -> " + state));
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
    closed.await();
  }
}
