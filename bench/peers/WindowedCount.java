import java.util.concurrent.CountDownLatch;
import org.apache.kafka.streams.KafkaStreams;

/** The topology `pulse_counting` written for Kafka Streams. With `bench.query.threads` it serves its store over HTTP. */
public final class WindowedCount {
  private static final String STORE = "pulse-counts";

  public static void main(String[] args) throws Exception {
    Peer peer = new Peer(args);
    peer.writeCounts(peer.windowedCounts(STORE).toStream());
    CountDownLatch closed = new CountDownLatch(1);
    KafkaStreams streams = peer.start(closed);
    if (peer.properties.containsKey("bench.query.threads")) {
      int threads = Integer.parseInt(peer.properties.getProperty("bench.query.threads"));
      StoreServer.start(streams, STORE, peer.duration("bench.window.ms").toMillis(), threads);
    }
    closed.await();
  }
}
