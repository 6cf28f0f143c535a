import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Base64;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Produces one empty record per line of a file, a key in base64, with Java's default partitioner. */
public final class Placement {
  public static void main(String[] args) throws Exception {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", args[0]);
    try (var producer = new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (String line : Files.readAllLines(Path.of(args[2]))) {
        producer.send(new ProducerRecord<>(args[1], Base64.getDecoder().decode(line), new byte[0]));
      }
    }
  }
}
