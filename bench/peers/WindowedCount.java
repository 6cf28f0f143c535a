import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.WindowStore;

/** The topology `pulse_counting` written for Kafka Streams. With `bench.query.port` it serves its store over HTTP. */
public final class WindowedCount {
  private static final String STORE = "pulse-counts";

  public static void main(String[] args) throws Exception {
    Peer peer = new Peer(args);
    TimeWindows windows =
        TimeWindows.ofSizeAndGrace(peer.duration("bench.window.ms"), peer.duration("bench.grace.ms"));
    peer.write(
        peer.pulses()
            .groupByKey(Grouped.with(Serdes.String(), Peer.json(Peer.Pulse.class)))
            .windowedBy(windows)
            .count(
                Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(STORE)
                    .withKeySerde(Serdes.String())
                    .withValueSerde(Serdes.Long())
                    .withRetention(peer.duration("bench.retention.ms")))
            .toStream()
            .map(
                (key, count) ->
                    KeyValue.pair(
                        key.key(),
                        new Peer.PulseCount(key.key(), key.window().start(), key.window().end(), count))),
        Peer.PulseCount.class);

    CountDownLatch closed = new CountDownLatch(1);
    KafkaStreams streams = peer.start(closed);
    if (peer.properties.containsKey("bench.query.port")) {
      int port = Integer.parseInt(peer.properties.getProperty("bench.query.port"));
      int threads = Integer.parseInt(peer.properties.getProperty("bench.query.threads"));
      StoreServer.start(streams, STORE, peer.duration("bench.window.ms").toMillis(), port, threads);
    }
    closed.await();
  }
}
