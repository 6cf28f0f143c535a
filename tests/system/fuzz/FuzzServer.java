import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.Serializer;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.KStreamImpl;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Runs cases of `tests/fuzz` on Kafka Streams' TopologyTestDriver: one case a line on stdin as JSON, one answer a line on
 * stdout. Every record is processed and committed before the next one; stores are in memory, nothing is cached.
 *
 * <p>A case is `{"nodes": […], "records": [[topic, key, row, timestamp], …]}`, as `tests/system/fuzz/case.py` writes it. The answer
 * holds what came to each sink in order, `[key, window start, window end, row, timestamp]`, every store's contents in the same
 * form, and how many records were dropped: `{"sinks": {…}, "stores": {…}, "dropped": n}`, or `{"error": text}`.
 */
public final class FuzzServer {
  private static final ObjectMapper MAPPER =
      new ObjectMapper().enable(DeserializationFeature.USE_LONG_FOR_INTS);
  private static final Serde<String> KEYS = Serdes.String();
  private static final Serde<Map<String, Object>> ROWS = new RowSerde();
  private static final Properties PROPERTIES = properties();
  private static final TopologyConfig TOPOLOGY_CONFIG = new TopologyConfig(new StreamsConfig(PROPERTIES));
  private static final Field REPARTITION_REQUIRED = repartitionRequired();

  private FuzzServer() {}

  public static void main(String[] arguments) throws IOException {
    // Whatever a library prints must not stand between the answers.
    PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    System.setOut(System.err);
    BufferedReader cases = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = cases.readLine(); line != null; line = cases.readLine()) {
      Map<String, Object> answer;
      try {
        answer = new Run(MAPPER.readTree(line)).answer();
      } catch (Throwable error) {
        answer = Map.of("error", described(error));
      }
      answers.println(MAPPER.writeValueAsString(answer));
      answers.flush();
    }
  }

  private static String described(Throwable error) {
    StringBuilder text = new StringBuilder();
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      text.append(cause).append('\n');
      Arrays.stream(cause.getStackTrace()).limit(12).forEach(frame -> text.append("    ").append(frame).append('\n'));
    }
    return text.toString();
  }

  private static Properties properties() {
    Properties properties = new Properties();
    properties.put("application.id", "fuzz");
    properties.put("bootstrap.servers", "none:1");
    properties.put("statestore.cache.max.bytes", "0");
    properties.put("default.key.serde", Serdes.StringSerde.class.getName());
    properties.put("default.value.serde", RowSerde.class.getName());
    properties.put("dsl.store.suppliers.class", BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class.getName());
    // Rows without a partner are looked for at most once a second of the wall clock otherwise.
    properties.put("__emit.interval.ms.kstreams.outer.join.spurious.results.fix__", 0L);
    return properties;
  }

  private static Field repartitionRequired() {
    try {
      Field field = KStreamImpl.class.getDeclaredField("repartitionRequired");
      field.setAccessible(true);
      return field;
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  /** Rows as JSON objects. */
  public static final class RowSerde implements Serde<Map<String, Object>> {
    private static final TypeReference<LinkedHashMap<String, Object>> TYPE = new TypeReference<>() {};

    @Override
    public Serializer<Map<String, Object>> serializer() {
      return (topic, row) -> {
        try {
          return row == null ? null : MAPPER.writeValueAsBytes(row);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      };
    }

    @Override
    public Deserializer<Map<String, Object>> deserializer() {
      return (topic, bytes) -> {
        try {
          return bytes == null ? null : MAPPER.readValue(bytes, TYPE);
        } catch (IOException error) {
          throw new UncheckedIOException(error);
        }
      };
    }
  }

  /**
   * The same stream, taken to be partitioned by its key: Tidemark lets a result without its window go on in its task, where
   * Kafka Streams would insert a repartition topic behind every step that could change a key.
   */
  private static <K, V> KStream<K, V> inPlace(KStream<K, V> stream) {
    try {
      REPARTITION_REQUIRED.set(stream, false);
      return stream;
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  /** What a node of the case gives to the nodes after it; one of the three. */
  private record Handle(
      KStream<String, Map<String, Object>> stream,
      KTable<String, Map<String, Object>> table,
      KTable<Windowed<String>, Map<String, Object>> windowed) {
    static Handle of(KStream<String, Map<String, Object>> stream) {
      return new Handle(stream, null, null);
    }

    static Handle of(KTable<String, Map<String, Object>> table) {
      return new Handle(null, table, null);
    }

    static Handle ofWindowed(KTable<Windowed<String>, Map<String, Object>> windowed) {
      return new Handle(null, null, windowed);
    }
  }

  /** One case: its topology, then its records. */
  private static final class Run {
    private final JsonNode given;
    private final StreamsBuilder builder = new StreamsBuilder(TOPOLOGY_CONFIG);
    private final List<Handle> handles = new ArrayList<>();
    private final Map<String, List<Object>> sinks = new LinkedHashMap<>();
    private final Map<String, Aggregates> storeAggregates = new HashMap<>();

    Run(JsonNode given) {
      this.given = given;
    }

    Map<String, Object> answer() {
      for (JsonNode node : given.get("nodes")) {
        handles.add(built(node));
      }
      try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), PROPERTIES, Instant.ofEpochMilli(0))) {
        Map<String, TestInputTopic<String, Map<String, Object>>> topics = new HashMap<>();
        for (JsonNode record : given.get("records")) {
          if (record.size() == 1) {
            driver.advanceWallClockTime(Duration.ofMillis(record.get(0).asLong()));
            continue;
          }
          topics
              .computeIfAbsent(
                  record.get(0).asText(), t -> driver.createInputTopic(t, KEYS.serializer(), ROWS.serializer()))
              .pipeInput(text(record.get(1)), row(record.get(2)), record.get(3).asLong());
        }
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("sinks", sinks);
        answer.put("stores", stores(driver));
        answer.put("dropped", dropped(driver));
        return answer;
      }
    }

    private Handle built(JsonNode node) {
      switch (node.get("op").asText()) {
        case "stream":
          return Handle.of(builder.stream(node.get("topic").asText(), Consumed.with(KEYS, ROWS)));
        case "table":
          return Handle.of(
              builder.table(node.get("topic").asText(), Consumed.with(KEYS, ROWS), keyValue(node.get("store").asText())));
        case "filter":
          {
            Expression where = Expression.of(node.get("where"));
            return Handle.of(
                in(node)
                    .stream
                    .filter((key, row) -> Boolean.TRUE.equals(where.of(key, row == null ? Map.of() : row))));
          }
        case "select":
          {
            Map<String, Expression> columns = expressions(node.get("columns"));
            return Handle.of(in(node).stream.mapValues((key, row) -> row == null ? null : computed(columns, key, row)));
          }
        case "rekey":
          {
            KStream<String, Map<String, Object>> stream = in(node).stream;
            if (!node.get("key").isNull()) {
              Expression newKey = Expression.of(node.get("key"));
              stream = stream.selectKey((key, row) -> (String) newKey.of(key, row == null ? Map.of() : row));
            }
            return Handle.of(stream.repartition(Repartitioned.with(KEYS, ROWS).withName(node.get("name").asText())));
          }
        case "to_table":
          return Handle.of(
              in(node).stream.toTable(Named.as("to-table-" + handles.size()), keyValue(node.get("store").asText())));
        case "to_stream":
          return Handle.of(streamOf(in(node)));
        case "aggregate":
        case "fold":
        case "reduce":
          return aggregated(node);
        case "suppress":
          return Handle.ofWindowed(
              in(node).windowed.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())));
        case "join":
          return joined(node);
        case "process":
          return Handle.of(processed(node));
        case "to":
          sink(node);
          return in(node);
        default:
          throw new IllegalArgumentException("no node " + node);
      }
    }

    private Handle in(JsonNode node) {
      return handles.get(node.get("in").asInt());
    }

    private KStream<String, Map<String, Object>> streamOf(Handle handle) {
      if (handle.stream != null) {
        return handle.stream;
      }
      if (handle.table != null) {
        return handle.table.toStream();
      }
      return inPlace(handle.windowed.toStream().map((key, row) -> KeyValue.pair(key.key(), row)));
    }

    private void sink(JsonNode node) {
      List<Object> taken = sinks.computeIfAbsent(node.get("topic").asText(), t -> new ArrayList<>());
      Handle handle = in(node);
      if (handle.windowed != null) {
        handle.windowed.toStream().process(() -> new Tap<Windowed<String>>(taken));
      } else {
        streamOf(handle).process(() -> new Tap<String>(taken));
      }
    }

    private Handle aggregated(JsonNode node) {
      Aggregates aggregates = Aggregates.of(node);
      String store = node.get("store").asText();
      storeAggregates.put(store, aggregates);
      KGroupedStream<String, Map<String, Object>> grouped = in(node).stream.groupByKey(Grouped.with(KEYS, ROWS));
      JsonNode window = node.get("window");
      if (window == null || window.isNull()) {
        KTable<String, Map<String, Object>> table =
            aggregates.reducer == null
                ? grouped.aggregate(aggregates::empty, aggregates::add, keyValue(store))
                : grouped.reduce(aggregates.reducer::apply, keyValue(store));
        return Handle.of(table.mapValues((key, row) -> aggregates.result(key, null, row)));
      }
      Duration size = millis(window, "size");
      Duration grace = millis(window, "grace");
      Duration retention = millis(window, "retention");
      KTable<Windowed<String>, Map<String, Object>> table;
      switch (window.get("kind").asText()) {
        case "session":
          table =
              grouped
                  .windowedBy(SessionWindows.ofInactivityGapAndGrace(size, grace))
                  .aggregate(
                      aggregates::empty,
                      aggregates::add,
                      aggregates::merged,
                      configured(
                          Materialized.<String, Map<String, Object>>as(Stores.inMemorySessionStore(store, retention))));
          break;
        case "sliding":
          table =
              grouped
                  .windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(size, grace))
                  .aggregate(aggregates::empty, aggregates::add, window(store, retention, size));
          break;
        default:
          {
            TimeWindows windows = TimeWindows.ofSizeAndGrace(size, grace).advanceBy(millis(window, "advance"));
            table =
                aggregates.reducer == null
                    ? grouped
                        .windowedBy(windows)
                        .aggregate(aggregates::empty, aggregates::add, window(store, retention, size))
                    : grouped.windowedBy(windows).reduce(aggregates.reducer::apply, window(store, retention, size));
          }
      }
      return Handle.ofWindowed(table.mapValues((key, row) -> aggregates.result(key.key(), key, row)));
    }

    private Handle joined(JsonNode node) {
      Handle left = handles.get(node.get("left").asInt());
      Handle right = handles.get(node.get("right").asInt());
      String kind = node.get("kind").asText();
      List<String> leftColumns = texts(node.get("left_columns"));
      List<String> rightColumns = texts(node.get("right_columns"));
      ValueJoiner<Map<String, Object>, Map<String, Object>, Map<String, Object>> joiner =
          (ours, theirs) -> {
            Map<String, Object> row = new LinkedHashMap<>();
            leftColumns.forEach(name -> row.put(name, ours == null ? null : ours.get(name)));
            for (String name : rightColumns) {
              if (row.get(name) == null) {
                row.put(name, theirs == null ? null : theirs.get(name));
              }
            }
            return row;
          };
      if (left.stream == null) {
        if (!node.get("is_joined").asBoolean()) {
          return Handle.of(
              switch (kind) {
                case "inner" -> left.table.join(right.table, joiner);
                case "left" -> left.table.leftJoin(right.table, joiner);
                default -> left.table.outerJoin(right.table, joiner);
              });
        }
        // Tidemark keeps the rows of a join that is joined again, as Kafka Streams does where it is told to.
        Materialized<String, Map<String, Object>, KeyValueStore<Bytes, byte[]>> store =
            keyValue("rows-" + node.get("name").asText());
        return Handle.of(
            switch (kind) {
              case "inner" -> left.table.join(right.table, joiner, store);
              case "left" -> left.table.leftJoin(right.table, joiner, store);
              default -> left.table.outerJoin(right.table, joiner, store);
            });
      }
      if (right.stream == null) {
        Joined<String, Map<String, Object>, Map<String, Object>> how = Joined.with(KEYS, ROWS, ROWS);
        return Handle.of(
            kind.equals("inner")
                ? left.stream.join(right.table, joiner, how)
                : left.stream.leftJoin(right.table, joiner, how));
      }
      String name = node.get("name").asText();
      JoinWindows windows =
          JoinWindows.ofTimeDifferenceAndGrace(millis(node, "within"), millis(node, "grace"));
      if (!node.get("before").isNull()) {
        windows = windows.before(millis(node, "before"));
      }
      if (!node.get("after").isNull()) {
        windows = windows.after(millis(node, "after"));
      }
      StreamJoined<String, Map<String, Object>, Map<String, Object>> how =
          StreamJoined.with(KEYS, ROWS, ROWS).withName(name).withStoreName(name).withLoggingDisabled();
      return Handle.of(
          switch (kind) {
            case "inner" -> left.stream.join(right.stream, joiner, windows, how);
            case "left" -> left.stream.leftJoin(right.stream, joiner, windows, how);
            default -> left.stream.outerJoin(right.stream, joiner, windows, how);
          });
    }

    private KStream<String, Map<String, Object>> processed(JsonNode node) {
      String store = node.get("store").asText();
      StoreBuilder<?> stores =
          Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(store), KEYS, ROWS).withLoggingDisabled();
      ProcessorSupplier<String, Map<String, Object>, String, Map<String, Object>> supplier =
          new ProcessorSupplier<>() {
            @Override
            public Processor<String, Map<String, Object>, String, Map<String, Object>> get() {
              return node.get("every").asLong() == 0
                  ? new Counter(store)
                  : new Ticker(store, node.get("every").asLong());
            }

            @Override
            public Set<StoreBuilder<?>> stores() {
              return Set.of(stores);
            }
          };
      return inPlace(in(node).stream.process(supplier));
    }

    private static Materialized<String, Map<String, Object>, KeyValueStore<Bytes, byte[]>> keyValue(String name) {
      return configured(Materialized.<String, Map<String, Object>>as(Stores.inMemoryKeyValueStore(name)));
    }

    private static Materialized<String, Map<String, Object>, WindowStore<Bytes, byte[]>> window(
        String name, Duration retention, Duration size) {
      return configured(
          Materialized.<String, Map<String, Object>>as(Stores.inMemoryWindowStore(name, retention, size, false)));
    }

    private static <S extends StateStore> Materialized<String, Map<String, Object>, S> configured(
        Materialized<String, Map<String, Object>, S> store) {
      return store.withKeySerde(KEYS).withValueSerde(ROWS).withCachingDisabled().withLoggingDisabled();
    }

    private Map<String, Object> stores(TopologyTestDriver driver) {
      Map<String, Object> found = new TreeMap<>();
      driver.getAllStateStores().forEach((name, store) -> found.put(name, contents(name, store)));
      return found;
    }

    private List<Object> contents(String name, StateStore store) {
      List<Object> rows = new ArrayList<>();
      if (store instanceof WindowStore<?, ?> windows) {
        drain(name, windows.all(), rows);
      } else if (store instanceof SessionStore<?, ?> sessions) {
        drain(name, sessions.findSessions(0, Long.MAX_VALUE), rows);
      } else if (store instanceof KeyValueStore<?, ?> values) {
        drain(name, values.all(), rows);
      }
      return rows;
    }

    private void drain(String name, KeyValueIterator<?, ?> entries, List<Object> rows) {
      Aggregates aggregates = storeAggregates.get(name);
      try (entries) {
        while (entries.hasNext()) {
          KeyValue<?, ?> entry = entries.next();
          Object value = entry.value;
          Long timestamp = null;
          if (value instanceof ValueAndTimestamp<?> stamped) {
            timestamp = stamped.timestamp();
            value = stamped.value();
          } else if (value instanceof ValueTimestampHeaders<?> stamped) {
            timestamp = stamped.timestamp();
            value = stamped.value();
          }
          if (value instanceof Map<?, ?> row && aggregates != null) {
            value = aggregates.stored(row);
          }
          if (!(value instanceof Map<?, ?>)) {
            value = Objects.toString(value);
          }
          rows.add(line(entry.key, value, timestamp));
        }
      }
    }

    private static double dropped(TopologyTestDriver driver) {
      double dropped = 0;
      for (Map.Entry<MetricName, ? extends Metric> metric : driver.metrics().entrySet()) {
        if (metric.getKey().name().equals("dropped-records-total")) {
          dropped += (double) metric.getValue().metricValue();
        }
      }
      return dropped;
    }
  }

  private static List<Object> line(Object key, Object row, Long timestamp) {
    if (key instanceof Windowed<?> windowed) {
      return Arrays.asList(windowed.key(), windowed.window().start(), windowed.window().end(), row, timestamp);
    }
    return Arrays.asList(key == null ? null : key.toString(), null, null, row, timestamp);
  }

  /** The end of a branch: notes each record, with the timestamp that a sink would write. */
  private record Tap<K>(List<Object> taken) implements Processor<K, Map<String, Object>, Void, Void> {
    @Override
    public void process(Record<K, Map<String, Object>> record) {
      taken.add(line(record.key(), record.value(), record.timestamp()));
    }
  }

  /** The twin of `functions.Counter`. */
  private static class Counter implements Processor<String, Map<String, Object>, String, Map<String, Object>> {
    private final String name;
    protected ProcessorContext<String, Map<String, Object>> context;
    protected KeyValueStore<String, Map<String, Object>> store;

    Counter(String name) {
      this.name = name;
    }

    @Override
    public void init(ProcessorContext<String, Map<String, Object>> context) {
      this.context = context;
      this.store = context.getStateStore(name);
    }

    @Override
    public void process(Record<String, Map<String, Object>> record) {
      if (record.key() != null) {
        context.forward(record.withValue(counted(record)));
      }
    }

    protected Map<String, Object> counted(Record<String, Map<String, Object>> record) {
      if (record.value() == null) {
        store.delete(record.key());
        return null;
      }
      Map<String, Object> old = store.get(record.key());
      Map<String, Object> counted = new LinkedHashMap<>();
      counted.put("seen", (old == null ? 0L : (Long) old.get("seen")) + 1);
      counted.put("added", Functions.total(record.value()));
      store.put(record.key(), counted);
      return counted;
    }
  }

  /** The twin of `functions.Ticker`. */
  private static final class Ticker extends Counter {
    private final long everyMs;

    Ticker(String name, long everyMs) {
      super(name);
      this.everyMs = everyMs;
    }

    @Override
    public void init(ProcessorContext<String, Map<String, Object>> context) {
      super.init(context);
      context.schedule(Duration.ofMillis(everyMs), PunctuationType.STREAM_TIME, this::tell);
    }

    @Override
    public void process(Record<String, Map<String, Object>> record) {
      if (record.key() != null) {
        counted(record);
      }
    }

    private void tell(long nowMs) {
      long atMs = nowMs / everyMs * everyMs;
      List<KeyValue<String, Map<String, Object>>> held = new ArrayList<>();
      try (KeyValueIterator<String, Map<String, Object>> all = store.all()) {
        all.forEachRemaining(held::add);
      }
      held.forEach(entry -> context.forward(new Record<>(entry.key, entry.value, atMs)));
    }
  }

  /** The twins of the functions in `functions.py`. */
  private static final class Functions {
    private Functions() {}

    static long total(Map<?, ?> row) {
      return row == null ? 0 : row.values().stream().filter(Long.class::isInstance).mapToLong(Long.class::cast).sum();
    }

    static Map<String, Object> addUp(Map<String, Object> old, Map<String, Object> row) {
      if (row == null) {
        return old;
      }
      Map<String, Object> added = new LinkedHashMap<>();
      row.forEach(
          (name, value) -> {
            Object before = old.get(name);
            added.put(name, value instanceof Long a && before instanceof Long b ? Long.valueOf(a + b) : value);
          });
      return added;
    }

    static Map<String, Object> larger(Map<String, Object> old, Map<String, Object> row) {
      return total(row) > total(old) ? row : old;
    }

    static Map<String, Object> toggle(Map<String, Object> old, Map<String, Object> row) {
      return total(row) == total(old) ? null : row;
    }

    static Map<String, Object> start() {
      Map<String, Object> row = new LinkedHashMap<>();
      row.put("folded", 0L);
      row.put("last", null);
      return row;
    }

    static Map<String, Object> tally(Map<String, Object> row, Map<String, Object> aggregate, long most) {
      long folded = (Long) aggregate.get("folded") + 1;
      if (folded > most) {
        return null;
      }
      Map<String, Object> next = new LinkedHashMap<>();
      next.put("folded", folded);
      next.put("last", total(row));
      return next;
    }
  }

  private interface Reducing {
    Map<String, Object> apply(Map<String, Object> old, Map<String, Object> row);
  }

  /** What an aggregation keeps and gives: SQL aggregates, or a function of `functions.py`. */
  private static final class Aggregates {
    private final List<Aggregate> of = new ArrayList<>();
    private String keyName;
    private String fold;
    private Reducing reducer;

    private record Aggregate(String name, String fold, Expression expression) {}

    static Aggregates of(JsonNode node) {
      Aggregates aggregates = new Aggregates();
      aggregates.keyName = node.get("key_name").asText();
      switch (node.get("op").asText()) {
        case "aggregate":
          for (JsonNode each : node.get("aggregates")) {
            Expression expression = each.get(2).isNull() ? null : Expression.of(each.get(2));
            aggregates.of.add(new Aggregate(each.get(0).asText(), each.get(1).asText(), expression));
          }
          break;
        case "fold":
          aggregates.fold = node.get("function").asText();
          break;
        default:
          aggregates.reducer =
              switch (node.get("function").asText()) {
                case "add_up" -> Functions::addUp;
                case "larger" -> Functions::larger;
                default -> Functions::toggle;
              };
      }
      return aggregates;
    }

    Map<String, Object> empty() {
      return fold != null ? Functions.start() : new LinkedHashMap<>();
    }

    Map<String, Object> add(String key, Map<String, Object> row, Map<String, Object> held) {
      if (fold != null) {
        return Functions.tally(row, held, fold.equals("tally_to_two") ? 2 : Long.MAX_VALUE);
      }
      Map<String, Object> one = new LinkedHashMap<>();
      // Windows and sessions take null values, too.
      Map<String, Object> given = row == null ? Map.of() : row;
      for (Aggregate aggregate : of) {
        Object value = aggregate.expression == null ? Long.valueOf(1) : aggregate.expression.of(key, given);
        switch (aggregate.fold) {
          case "count" -> one.put(aggregate.name, value == null ? 0L : 1L);
          case "mean" -> {
            one.put(aggregate.name + ".sum", value == null ? null : ((Number) value).doubleValue());
            one.put(aggregate.name + ".count", value == null ? 0L : 1L);
          }
          default -> one.put(aggregate.name, value);
        }
      }
      return held.isEmpty() ? one : merged(key, held, one);
    }

    Map<String, Object> merged(String key, Map<String, Object> left, Map<String, Object> right) {
      if (left.isEmpty()) {
        return right;
      }
      Map<String, Object> both = new LinkedHashMap<>();
      for (Aggregate aggregate : of) {
        if (aggregate.fold.equals("mean")) {
          put(both, "sum", aggregate.name + ".sum", left, right);
          put(both, "sum", aggregate.name + ".count", left, right);
        } else {
          put(both, aggregate.fold, aggregate.name, left, right);
        }
      }
      return both;
    }

    private static void put(
        Map<String, Object> both, String fold, String name, Map<String, Object> left, Map<String, Object> right) {
      Object a = left.get(name);
      Object b = right.get(name);
      both.put(name, a == null ? b : b == null ? a : together(fold, a, b));
    }

    private static Object together(String fold, Object a, Object b) {
      if (a instanceof Long x && b instanceof Long y) {
        return switch (fold) {
          case "min" -> Math.min(x, y);
          case "max" -> Math.max(x, y);
          default -> x + y;
        };
      }
      double x = ((Number) a).doubleValue();
      double y = ((Number) b).doubleValue();
      return switch (fold) {
        case "min" -> Math.min(x, y);
        case "max" -> Math.max(x, y);
        default -> x + y;
      };
    }

    /** What a reader sees of a stored value. */
    Map<String, Object> stored(Map<?, ?> held) {
      Map<String, Object> row = new LinkedHashMap<>();
      if (of.isEmpty()) {
        held.forEach((name, value) -> row.put((String) name, value));
        return row;
      }
      for (Aggregate aggregate : of) {
        if (aggregate.fold.equals("mean")) {
          Object sum = held.get(aggregate.name + ".sum");
          Object count = held.get(aggregate.name + ".count");
          row.put(aggregate.name, sum == null ? null : (Double) sum / (Long) count);
        } else {
          row.put(aggregate.name, held.get(aggregate.name));
        }
      }
      return row;
    }

    /** The row that is emitted: the key, the window, the values. */
    Map<String, Object> result(String key, Windowed<String> windowed, Map<String, Object> held) {
      if (held == null) {
        return null;
      }
      Map<String, Object> row = new LinkedHashMap<>();
      stored(held).forEach((name, value) -> row.put(name, value));
      row.put(keyName, key);
      if (windowed != null) {
        row.put("window_start", windowed.window().start());
        row.put("window_end", windowed.window().end());
      }
      return row;
    }
  }

  /** An expression as `expressions.py` writes it: `["+", ["col", "a"], ["lit", 1]]`; nulls as in SQL. */
  private interface Expression {
    Object of(String key, Map<String, Object> row);

    static Expression of(JsonNode node) {
      String op = node.get(0).asText();
      List<Expression> parts = new ArrayList<>();
      switch (op) {
        case "col":
          {
            String name = node.get(1).asText();
            return (key, row) -> row.get(name);
          }
        case "key":
          return (key, row) -> key;
        case "lit":
          {
            Object value = node.get(1).isTextual() ? node.get(1).asText() : node.get(1).isNull() ? null : node.get(1).asLong();
            return (key, row) -> value;
          }
        default:
          for (int i = 1; i < node.size(); i++) {
            parts.add(of(node.get(i)));
          }
      }
      return (key, row) -> {
        Object[] values = parts.stream().map(part -> part.of(key, row)).toArray();
        return computed(op, values);
      };
    }

    private static Object computed(String op, Object[] values) {
      switch (op) {
        case "isnull":
          return values[0] == null;
        case "coalesce":
          return Arrays.stream(values).filter(Objects::nonNull).findFirst().orElse(null);
        default:
          if (Arrays.stream(values).anyMatch(Objects::isNull)) {
            return null;
          }
      }
      if (op.equals("str")) {
        return values[0].toString();
      }
      if (op.equals("=")) {
        return values[0].equals(values[1]);
      }
      if (op.equals("<>")) {
        return !values[0].equals(values[1]);
      }
      long a = (Long) values[0];
      long b = (Long) values[1];
      return switch (op) {
        case "+" -> a + b;
        case "-" -> a - b;
        case "*" -> a * b;
        case "%" -> b == 0 ? null : (Object) (a % b);
        case "<" -> a < b;
        case ">" -> a > b;
        default -> throw new IllegalArgumentException("no operation " + op);
      };
    }
  }

  private static Map<String, Expression> expressions(JsonNode columns) {
    Map<String, Expression> found = new LinkedHashMap<>();
    columns.forEach(column -> found.put(column.get(0).asText(), Expression.of(column.get(1))));
    return found;
  }

  private static Map<String, Object> computed(Map<String, Expression> columns, String key, Map<String, Object> row) {
    Map<String, Object> selected = new LinkedHashMap<>();
    columns.forEach((name, expression) -> selected.put(name, expression.of(key, row)));
    return selected;
  }

  private static Duration millis(JsonNode node, String name) {
    return Duration.ofMillis(node.get(name).asLong());
  }

  private static List<String> texts(JsonNode names) {
    List<String> found = new ArrayList<>();
    names.forEach(name -> found.add(name.asText()));
    return found;
  }

  private static String text(JsonNode value) {
    return value.isNull() ? null : value.asText();
  }

  private static Map<String, Object> row(JsonNode value) {
    return value.isNull() ? null : MAPPER.convertValue(value, new TypeReference<LinkedHashMap<String, Object>>() {});
  }
}
