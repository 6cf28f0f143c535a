import com.fasterxml.jackson.annotation.JsonProperty;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.StreamJoined;

/** The topology `pulse_breaths` written for Kafka Streams. */
public final class StreamJoin {
  /** An input record of the second source. */
  public static final class Breath {
    @JsonProperty("patient_id") public String patientId;
    @JsonProperty("breath_ms") public long breathMs;
  }

  /** What a join keeps of a pulse. */
  public static final class Beat {
    @JsonProperty("patient_id") public String patientId;
    @JsonProperty("beat_ms") public long beatMs;

    public Beat() {}

    Beat(Peer.Pulse pulse) {
      patientId = pulse.patientId;
      beatMs = pulse.beatMs;
    }
  }

  /** A pulse and a breath. */
  public static final class Pair {
    @JsonProperty("patient_id") public final String patientId;
    @JsonProperty("beat_ms") public final long beatMs;
    @JsonProperty("breath_ms") public final long breathMs;

    Pair(Beat beat, Breath breath) {
      patientId = beat.patientId;
      beatMs = beat.beatMs;
      breathMs = breath.breathMs;
    }
  }

  public static void main(String[] args) throws Exception {
    Peer peer = new Peer(args);
    peer.write(
        peer.pulses()
            .mapValues(pulse -> new Beat(pulse))
            .join(
                peer.builder.stream(
                    peer.sources()[1],
                    Consumed.with(Serdes.String(), Peer.json(Breath.class))
                        .withTimestampExtractor((record, partitionTime) -> ((Breath) record.value()).breathMs)),
                Pair::new,
                JoinWindows.ofTimeDifferenceAndGrace(
                    peer.duration("bench.apart.ms"), peer.duration("bench.join.grace.ms")),
                StreamJoined.with(Serdes.String(), Peer.json(Beat.class), Peer.json(Breath.class))),
        Pair.class);
    peer.run();
  }
}
