import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.state.SessionStore;

/** The topology `pulse_sessions` written for Kafka Streams. */
public final class SessionCount {
  public static void main(String[] args) throws Exception {
    Peer peer = new Peer(args);
    SessionWindows sessions =
        SessionWindows.ofInactivityGapAndGrace(peer.duration("bench.gap.ms"), peer.duration("bench.grace.ms"));
    peer.writeCounts(
        peer.pulses()
            .groupByKey(Grouped.with(Serdes.String(), Peer.json(Peer.Pulse.class)))
            .windowedBy(sessions)
            .count(
                Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("pulse-counts")
                    .withKeySerde(Serdes.String())
                    .withValueSerde(Serdes.Long())
                    .withRetention(peer.duration("bench.retention.ms")))
            .toStream()
            // A session that grows is deleted under its old end; its record's key alone could not say which it is.
            .filter((session, count) -> count != null));
    peer.run();
  }
}
