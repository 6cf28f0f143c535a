import com.fasterxml.jackson.annotation.JsonProperty;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.kstream.Consumed;

/** The topology `large_values` written for Kafka Streams. */
public final class LargeValues {
  /** An input record, and an output record. */
  public static final class Reading {
    @JsonProperty("patient_id") public String patientId;
    @JsonProperty("beat_ms") public long beatMs;
    @JsonProperty("ibi_ms") public int ibiMs;
    @JsonProperty("recording") public String recording;
    @JsonProperty("waveform") public String waveform;
  }

  public static void main(String[] args) throws Exception {
    Peer peer = new Peer(args);
    peer.write(
        peer.builder
            .stream(
                peer.sources()[0],
                Consumed.with(Serdes.String(), Peer.json(Reading.class))
                    .withTimestampExtractor((record, partitionTime) -> ((Reading) record.value()).beatMs))
            .filter((key, reading) -> reading.ibiMs >= 700),
        Reading.class);
    peer.run();
  }
}
