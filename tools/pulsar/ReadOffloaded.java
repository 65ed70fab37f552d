import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.ReadHandle;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.LedgerOffloader;
import org.apache.bookkeeper.mledger.LedgerOffloaderStatsDisable;
import org.apache.bookkeeper.mledger.offload.jcloud.JCloudLedgerOffloaderFactory;
import org.apache.pulsar.common.policies.data.OffloadPoliciesImpl;

/**
 * Reads offloaded ledgers with Pulsar's own offloader, as a broker does: 100 entries at a time.
 *
 *   ReadOffloaded ENDPOINT BUCKET entries UUID:LEDGER …       a line for each entry: ledger entry length sha256
 *   ReadOffloaded ENDPOINT BUCKET ROUNDS UUID:LEDGER …        a line for each round: nanoseconds entries bytes;
 *                                                             each begins when a line comes in
 *
 * Credentials come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.
 */
public final class ReadOffloaded {
    private static final int ENTRIES_AT_ONCE = 100;
    private static long entries;
    private static long bytes;

    public static void main(String[] args) throws Exception {
        Properties said = new Properties();
        said.setProperty("managedLedgerOffloadDriver", "aws-s3");
        said.setProperty("s3ManagedLedgerOffloadBucket", args[1]);
        said.setProperty("s3ManagedLedgerOffloadRegion", "us-east-1");
        said.setProperty("s3ManagedLedgerOffloadServiceEndpoint", args[0]);
        OrderedScheduler scheduler = OrderedScheduler.newSchedulerBuilder().numThreads(2).name("offload").build();
        LedgerOffloader offloader = new JCloudLedgerOffloaderFactory().create(
                OffloadPoliciesImpl.create(said), new HashMap<>(), scheduler, LedgerOffloaderStatsDisable.INSTANCE);
        boolean shown = args[2].equals("entries");
        int rounds = shown ? 1 : Integer.parseInt(args[2]);
        BufferedReader wanted = new BufferedReader(new InputStreamReader(System.in));
        for (int round = 0; round < rounds; round++) {
            if (!shown && wanted.readLine() == null) {
                break;
            }
            entries = 0;
            bytes = 0;
            long began = System.nanoTime();
            for (int at = 3; at < args.length; at++) {
                String[] key = args[at].split(":");
                read(offloader, UUID.fromString(key[0]), Long.parseLong(key[1]), shown);
            }
            if (!shown) {
                System.out.println((System.nanoTime() - began) + " " + entries + " " + bytes);
                System.out.flush();
            }
        }
        System.out.flush();
        System.exit(0);
    }

    private static void read(LedgerOffloader offloader, UUID attempt, long ledger, boolean shown) throws Exception {
        Map<String, String> driver = offloader.getOffloadDriverMetadata();
        try (ReadHandle handle = offloader.readOffloaded(ledger, attempt, driver).get()) {
            long last = handle.getLastAddConfirmed();
            for (long first = 0; first <= last; first += ENTRIES_AT_ONCE) {
                long until = Math.min(first + ENTRIES_AT_ONCE - 1, last);
                try (LedgerEntries some = handle.readAsync(first, until).get()) {
                    for (LedgerEntry entry : some) {
                        entries++;
                        bytes += entry.getLength();
                        if (shown) {
                            show(entry);
                        }
                    }
                }
            }
        }
    }

    private static void show(LedgerEntry entry) throws Exception {
        ByteBuffer data = entry.getEntryNioBuffer();
        int length = data.remaining();
        MessageDigest digest = MessageDigest.getInstance("SHA-256");
        digest.update(data);
        System.out.println(entry.getLedgerId() + " " + entry.getEntryId() + " " + length + " "
                + HexFormat.of().formatHex(digest.digest()));
    }
}
