import org.apache.kafka.streams.kstream.Suppressed;

/** The topology `pulse_final_counts` written for Kafka Streams. */
public final class FinalCount {
  public static void main(String[] args) throws Exception {
    Peer peer = new Peer(args);
    peer.writeCounts(
        peer.windowedCounts("pulse-counts")
            .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream());
    peer.run();
  }
}
