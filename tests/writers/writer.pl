# Writes orders with rows of the outbox, until the file `stop` is in its folder. A transaction whose COMMIT is not
# answered is repeated with the same ids, as docs/TRANSACTIONS.md says. Some transactions are rolled back.

use strict;
use warnings;
use DBI qw(:sql_types);
use JSON::PP qw(encode_json);
use Time::HiRes qw(sleep time);

my ($host, $port, $user, $password, $database, $most_rows) = @ARGV;
my $DUPLICATE_KEY = 1062;
my $next_id;
$| = 1;

# The connection as the INSERT of the document gets it. The transaction goes on with the next row.
package SharedTransaction {
    sub begin_work { }
    sub do { my $self = shift; $self->{real}->do(@_) }
    sub prepare { my $self = shift; $self->{real}->prepare(@_) }
    sub commit { }
}

# The package UUID, as far as the document uses it.
sub UUID::generate_v7 { $_[0] = $next_id }

sub new_id {
    my $id = substr(pack('Q>', int(time() * 1000)), 2) . join '', map { chr int rand 256 } 1 .. 10;
    vec($id, 6, 8) = 0x70 | (vec($id, 6, 8) & 0x0f);
    vec($id, 8, 8) = 0x80 | (vec($id, 8, 8) & 0x3f);
    return $id;
}

sub insert {
    my ($dbh, $mail) = @_;
    # THE INSERT OF docs/TRANSACTIONS.md
}

# Insert an id into a table of the application.
sub note {
    my ($dbh, $sql, $id) = @_;
    my $statement = $dbh->prepare($sql);
    $statement->bind_param(1, $id, SQL_BINARY);
    $statement->execute;
}

sub write_rows {
    my ($dbh, $ids, $keeps) = @_;
    $dbh->begin_work;
    for my $id (@$ids) {
        note($dbh, 'INSERT IGNORE INTO sold (id) VALUES (?)', $id);
        $next_id = $id;
        insert(bless({real => $dbh}, 'SharedTransaction'), {pad => 'perl'});
    }
    if ($keeps) {
        $dbh->commit;
        return;
    }
    $dbh->rollback;
    note($dbh, 'INSERT INTO undone (id) VALUES (?)', $_) for @$ids;
}

my $dbh;
until (-e 'stop') {
    my @ids = map { new_id() } 1 .. 1 + int rand $most_rows;
    my $keeps = int rand 8;
    while (1) {
        my $done = eval {
            $dbh //= DBI->connect("DBI:MariaDB:database=$database;host=$host;port=$port", $user, $password,
                {RaiseError => 1, PrintError => 0, AutoCommit => 1, mariadb_auto_reconnect => 0});
            write_rows($dbh, \@ids, $keeps);
            1;
        };
        last if $done;
        if ($dbh && $dbh->err && $dbh->err == $DUPLICATE_KEY) {
            # The COMMIT before was done, and the rows still wait.
            $dbh->rollback;
            last;
        }
        print "$@";
        undef $dbh;
        last unless $keeps;
        sleep 0.05;
    }
}
