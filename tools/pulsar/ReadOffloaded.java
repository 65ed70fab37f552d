import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.stream.Collectors;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderStatsDisable;
import org.apache.bookkeeper.mledger.offload.jcloud.JCloudLedgerOffloaderFactory;
import org.apache.pulsar.common.api.proto.BrokerEntryMetadata;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.compression.CompressionCodecProvider;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;
import org.apache.pulsar.common.protocol.Commands;

/**
 * Reads offloaded ledgers with Pulsar's own offloader, as a broker does: 100 entries at a time.
 *
 *   ReadOffloaded ENDPOINT BUCKET entries UUID:LEDGER …       a line for each entry: ledger entry length sha256
 *   ReadOffloaded ENDPOINT BUCKET messages UUID:LEDGER …      a line for each message that is not in a batch, chunks
 *                                                             assembled: ledger entry length sha256 of its value
 *   ReadOffloaded ENDPOINT BUCKET metadata UUID:LEDGER …      for each ledger a line: ledger last-entry length closed;
 *                                                             then for each entry: ledger entry messages (0: a marker)
 *                                                             and, with colons: publish time, producer, sequence,
 *                                                             properties, broker's time and index (-1: none), sha256
 *                                                             of the payload
 *   ReadOffloaded ENDPOINT BUCKET ROUNDS UUID:LEDGER …        a line for each round: nanoseconds entries bytes;
 *                                                             each begins when a line comes in
 *
 * Credentials come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.
 */
public final class ReadOffloaded {
    private static final int ENTRIES_AT_ONCE = 100;
    private static long entries;
    private static long bytes;
    private static final Map<String, ByteBuf> CHUNKED = new HashMap<>();

    public static void main(String[] args) throws Exception {
        Properties said = new Properties();
        said.setProperty("managedLedgerOffloadDriver", "aws-s3");
        said.setProperty("s3ManagedLedgerOffloadBucket", args[1]);
        said.setProperty("s3ManagedLedgerOffloadRegion", "us-east-1");
        said.setProperty("s3ManagedLedgerOffloadServiceEndpoint", args[0]);
        OrderedScheduler scheduler = OrderedScheduler.newSchedulerBuilder().numThreads(2).name("offload").build();
        LedgerOffloader offloader = new JCloudLedgerOffloaderFactory().create(
                OffloadPoliciesImpl.create(said), new HashMap<>(), scheduler, LedgerOffloaderStatsDisable.INSTANCE);
        String shown = List.of("entries", "messages", "metadata").contains(args[2]) ? args[2] : "";
        boolean isShown = !shown.isEmpty();
        int rounds = isShown ? 1 : Integer.parseInt(args[2]);
        BufferedReader wanted = new BufferedReader(new InputStreamReader(System.in));
        for (int round = 0; round < rounds; round++) {
            if (!isShown && wanted.readLine() == null) {
                break;
            }
            entries = 0;
            bytes = 0;
            long began = System.nanoTime();
            for (int at = 3; at < args.length; at++) {
                String[] key = args[at].split(":");
                read(offloader, UUID.fromString(key[0]), Long.parseLong(key[1]), shown);
            }
            if (!isShown) {
                System.out.println((System.nanoTime() - began) + " " + entries + " " + bytes);
                System.out.flush();
            }
        }
        System.out.flush();
        System.exit(0);
    }

    private static void read(LedgerOffloader offloader, UUID attempt, long ledger, String shown) throws Exception {
        Map<String, String> driver = offloader.getOffloadDriverMetadata();
        try (ReadHandle handle = offloader.readOffloaded(ledger, attempt, driver).get()) {
            long last = handle.getLastAddConfirmed();
            if (shown.equals("metadata")) {
                System.out.println(ledger + " " + last + " " + handle.getLength() + " " + handle.isClosed());
            }
            for (long first = 0; first <= last; first += ENTRIES_AT_ONCE) {
                long until = Math.min(first + ENTRIES_AT_ONCE - 1, last);
                try (LedgerEntries some = handle.readAsync(first, until).get()) {
                    for (LedgerEntry entry : some) {
                        entries++;
                        bytes += entry.getLength();
                        if (shown.equals("entries")) {
                            show(entry, Unpooled.wrappedBuffer(entry.getEntryNioBuffer()));
                        } else if (shown.equals("messages")) {
                            showMessage(entry);
                        } else if (shown.equals("metadata")) {
                            showMetadata(entry);
                        }
                    }
                }
            }
        }
    }

    /** Parses and decompresses with Pulsar's code; assembles chunks in order, as Pulsar's consumer does. */
    private static void showMessage(LedgerEntry entry) throws Exception {
        ByteBuf data = Unpooled.copiedBuffer(entry.getEntryNioBuffer());
        MessageMetadata metadata = Commands.parseMessageMetadata(data);
        if (metadata.hasNumMessagesInBatch() || metadata.hasMarkerType()) {
            return;
        }
        if (metadata.getNumChunksFromMsg() > 1) {
            if (metadata.getChunkId() == 0) {
                CHUNKED.put(metadata.getUuid(), Unpooled.buffer(metadata.getTotalChunkMsgSize()));
            }
            ByteBuf whole = CHUNKED.get(metadata.getUuid());
            whole.writeBytes(data);
            if (metadata.getChunkId() < metadata.getNumChunksFromMsg() - 1) {
                return;
            }
            if (whole.readableBytes() != metadata.getTotalChunkMsgSize()) {
                throw new IllegalStateException("message " + metadata.getUuid() + " has " + whole.readableBytes()
                        + " bytes, stated are " + metadata.getTotalChunkMsgSize());
            }
            data = whole;
        }
        show(entry, CompressionCodecProvider.getCompressionCodec(metadata.getCompression())
                .decode(data, metadata.getUncompressedSize()));
    }

    /** Parses the broker's and the producer's metadata with Pulsar's code. */
    private static void showMetadata(LedgerEntry entry) throws Exception {
        ByteBuf data = Unpooled.copiedBuffer(entry.getEntryNioBuffer());
        BrokerEntryMetadata stamp = Commands.parseBrokerEntryMetadataIfExist(data);
        MessageMetadata metadata = Commands.parseMessageMetadata(data);
        System.out.println(entry.getLedgerId() + " " + entry.getEntryId() + " "
                + (metadata.hasMarkerType() ? 0 : metadata.getNumMessagesInBatch()) + " " + metadata.getPublishTime()
                + ":" + metadata.getProducerName() + ":" + metadata.getSequenceId() + ":" + properties(metadata)
                + ":" + stamp.getBrokerTimestamp() + ":" + (stamp.hasIndex() ? stamp.getIndex() : -1)
                + ":" + sha256(data));
    }

    private static String properties(MessageMetadata metadata) {
        return metadata.getPropertiesList().stream().map(pair -> pair.getKey() + "=" + pair.getValue())
                .collect(Collectors.joining(","));
    }

    private static void show(LedgerEntry entry, ByteBuf data) throws Exception {
        System.out.println(entry.getLedgerId() + " " + entry.getEntryId() + " " + data.readableBytes() + " "
                + sha256(data));
    }

    private static String sha256(ByteBuf data) throws Exception {
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        digest.update(data.nioBuffer());
        return HexFormat.of().formatHex(digest.digest());
    }
}
