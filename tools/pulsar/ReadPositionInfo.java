import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.bookkeeper.mledger.proto.MessageRange;
import org.apache.bookkeeper.mledger.proto.PositionInfo;

/**
 * Parses exported states of cursors with Pulsar's own class.
 *
 *   ReadPositionInfo FILE …    a line for each file: mark-delete, then the acknowledged ranges, (lower..upper] each
 */
public final class ReadPositionInfo {
    public static void main(String[] args) throws Exception {
        for (String file : args) {
            PositionInfo info = new PositionInfo();
            info.parseFrom(Files.readAllBytes(Path.of(file)));
            StringBuilder line = new StringBuilder(info.getLedgerId() + ":" + info.getEntryId());
            for (MessageRange range : info.getIndividualDeletedMessagesList()) {
                line.append(" (").append(range.getLowerEndpoint().getLedgerId()).append(':')
                        .append(range.getLowerEndpoint().getEntryId()).append("..")
                        .append(range.getUpperEndpoint().getLedgerId()).append(':')
                        .append(range.getUpperEndpoint().getEntryId()).append(']');
            }
            System.out.println(line);
        }
    }
}
