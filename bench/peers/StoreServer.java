import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyWindowStore;
import org.apache.kafka.streams.state.WindowStoreIterator;

/**
 * Serves a window store of counts over HTTP, as an application that uses interactive queries does:
 * `/windows?key=…&from_ms=…&to_ms=…` returns the windows of a key that this instance has, `/partitions` the partitions
 * of its active tasks. The status is 503 while the store cannot be read.
 */
final class StoreServer {
  record Count(long pulses) {}

  record Entry(
      String key,
      @JsonProperty("window_start_ms") long windowStartMs,
      @JsonProperty("window_end_ms") long windowEndMs,
      Count value) {}

  private static final ObjectMapper MAPPER = new ObjectMapper();

  private final KafkaStreams streams;
  private final String name;
  private final long windowMs;
  private volatile ReadOnlyWindowStore<String, Long> store;

  private StoreServer(KafkaStreams streams, String name, long windowMs) {
    this.streams = streams;
    this.name = name;
    this.windowMs = windowMs;
  }

  static void start(KafkaStreams streams, String name, long windowMs, int threads) throws IOException {
    StoreServer served = new StoreServer(streams, name, windowMs);
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 128);
    server.setExecutor(Executors.newFixedThreadPool(threads));
    server.createContext("/windows", refusing(served::windows));
    server.createContext("/partitions", refusing(served::partitions));
    server.start();
    System.err.println("serves its store on port " + server.getAddress().getPort());
  }

  private void windows(HttpExchange exchange) throws IOException {
    Map<String, String> query = parameters(exchange);
    String key = query.get("key");
    Instant from = Instant.ofEpochMilli(Long.parseLong(query.get("from_ms")));
    Instant to = Instant.ofEpochMilli(Long.parseLong(query.get("to_ms")));
    List<Entry> entries = new ArrayList<>();
    try (WindowStoreIterator<Long> windows = store().fetch(key, from, to)) {
      while (windows.hasNext()) {
        KeyValue<Long, Long> window = windows.next();
        entries.add(new Entry(key, window.key, window.key + windowMs, new Count(window.value)));
      }
    }
    respond(exchange, 200, Map.of("entries", entries));
  }

  private void partitions(HttpExchange exchange) throws IOException {
    if (streams.state() != KafkaStreams.State.RUNNING) {
      throw new InvalidStateStoreException("the state is " + streams.state());
    }
    List<Integer> active = new ArrayList<>();
    streams
        .metadataForLocalThreads()
        .forEach(thread -> thread.activeTasks().forEach(task -> active.add(task.taskId().partition())));
    respond(exchange, 200, active);
  }

  /** Looked up once: the object finds the stores of the present tasks at each read. */
  private ReadOnlyWindowStore<String, Long> store() {
    if (store == null) {
      store = streams.store(StoreQueryParameters.fromNameAndType(name, QueryableStoreTypes.windowStore()));
    }
    return store;
  }

  private static HttpHandler refusing(HttpHandler handler) {
    return exchange -> {
      try {
        handler.handle(exchange);
      } catch (InvalidStateStoreException unavailable) {
        respond(exchange, 503, Map.of("detail", String.valueOf(unavailable.getMessage())));
      }
    };
  }

  private static void respond(HttpExchange exchange, int status, Object content) throws IOException {
    byte[] body = MAPPER.writeValueAsBytes(content);
    exchange.getResponseHeaders().set("Content-Type", "application/json");
    exchange.sendResponseHeaders(status, body.length);
    try (OutputStream out = exchange.getResponseBody()) {
      out.write(body);
    }
  }

  private static Map<String, String> parameters(HttpExchange exchange) {
    Map<String, String> found = new HashMap<>();
    for (String part : exchange.getRequestURI().getRawQuery().split("&")) {
      String[] pair = part.split("=", 2);
      found.put(pair[0], URLDecoder.decode(pair[1], StandardCharsets.UTF_8));
    }
    return found;
  }
}
