<?php

// The driver of Laravel's queue with the driver `database`, made of Debian's packages of its components.

require 'Illuminate/Bus/autoload.php';
require 'Illuminate/Events/autoload.php';
require 'Illuminate/Queue/autoload.php';

use Illuminate\Bus\Dispatcher as Bus;
use Illuminate\Container\Container;
use Illuminate\Contracts\Bus\Dispatcher as BusContract;
use Illuminate\Contracts\Container\Container as ContainerContract;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Contracts\Events\Dispatcher as EventsContract;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Database\Capsule\Manager as Database;
use Illuminate\Database\Schema\Blueprint;
use Illuminate\Events\Dispatcher as Events;
use Illuminate\Queue\Capsule\Manager as Queues;
use Illuminate\Queue\Worker;
use Illuminate\Queue\WorkerOptions;

/** Seconds between two looks at an empty queue. Laravel's own default is 3. */
const POLL = 0.1;

error_reporting(E_ALL & ~E_DEPRECATED);

/** The job. Laravel serializes it. */
class Noop implements ShouldQueue
{
    public function __construct(private int $id, private string $pad)
    {
    }

    public function handle(): void
    {
        Executions::ran($this->id);
    }
}

/** The file of executions. A worker runs one job at a time and has no other thread, so each line is written at once. */
class Executions
{
    private static $file;

    public static function ran(int $id): void
    {
        self::$file ??= fopen(variable('PEER_EXECUTIONS'), 'a');
        fwrite(self::$file, $id . ' ' . now_us() . "\n");
    }
}

/** Errors of a worker go to its log. */
class Report implements ExceptionHandler
{
    public function report(Throwable $e): void
    {
        fwrite(STDERR, "$e\n");
    }

    public function shouldReport(Throwable $e): bool
    {
        return true;
    }

    public function render($request, Throwable $e): void
    {
    }

    public function renderForConsole($output, Throwable $e): void
    {
    }
}

function variable(string $name): string
{
    return getenv($name) === false ? throw new RuntimeException("$name is not set") : getenv($name);
}

function now_us(): int
{
    return (int) (microtime(true) * 1e6);
}

/** Connect to MySQL, and return the queues. */
function queues(): Queues
{
    $container = new Container();
    Container::setInstance($container);
    $container->instance(ContainerContract::class, $container);
    $container->instance(EventsContract::class, new Events($container));
    $container->alias(EventsContract::class, 'events');
    $container->singleton(BusContract::class, fn ($container) => new Bus($container));
    $queues = new Queues($container);
    $database = new Database($container);
    $database->addConnection([
        'driver' => 'mysql',
        'unix_socket' => variable('PEER_MYSQL_SOCKET'),
        'host' => 'localhost',
        'database' => variable('PEER_MYSQL_DATABASE'),
        'username' => 'root',
        'password' => '',
        'charset' => 'utf8mb4',
        'collation' => 'utf8mb4_bin',
    ]);
    $database->setAsGlobal();
    $container->instance('db', $database->getDatabaseManager());
    $queues->addConnection(['driver' => 'database', 'table' => 'jobs', 'queue' => 'noop', 'retry_after' => 90]);
    return $queues;
}

/** Make the table of `php artisan queue:table`. */
function prepare(): void
{
    queues();
    Database::schema()->create('jobs', function (Blueprint $table) {
        $table->bigIncrements('id');
        $table->string('queue')->index();
        $table->longText('payload');
        $table->unsignedTinyInteger('attempts');
        $table->unsignedInteger('reserved_at')->nullable();
        $table->unsignedInteger('available_at');
        $table->unsignedInteger('created_at');
    });
}

/** The load, as the README describes it. PHP has no threads, so each caller is a process. */
class Load
{
    private int $callers;
    private int $batch;
    private int $first;
    private int $jobs;
    private float $seconds;
    private int $due;
    private int $within;
    private string $pad;

    public function __construct()
    {
        $this->callers = (int) variable('PEER_CALLERS');
        $this->batch = (int) variable('PEER_BATCH');
        $this->first = (int) variable('PEER_FIRST');
        $this->jobs = (int) variable('PEER_JOBS');
        $this->seconds = (float) variable('PEER_SECONDS');
        $this->due = (int) variable('PEER_DUE_US');
        $this->within = (int) variable('PEER_DUE_WITHIN_US');
        $this->pad = str_repeat('x', 176);
    }

    public function enqueue(): void
    {
        [$children, $pipes] = [[], []];
        for ($caller = 0; $caller < $this->callers; $caller++) {
            $pipe = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
            $child = pcntl_fork();
            if ($child === 0) {
                fclose($pipe[0]);
                $this->obey($caller, $pipe[1]);
                exit(0);
            }
            fclose($pipe[1]);
            $children[] = $child;
            $pipes[] = $pipe[0];
        }
        // The time begins when all callers are ready.
        array_walk($pipes, fn ($pipe) => fgets($pipe));
        $began = now_us();
        array_walk($pipes, fn ($pipe) => fwrite($pipe, "$began\n"));
        $jobs = array_sum(array_map(fn ($pipe) => (int) fgets($pipe), $pipes));
        $seconds = (now_us() - $began) / 1e6;
        foreach ($children as $child) {
            pcntl_waitpid($child, $status);
            $status === 0 || exit(1);
        }
        echo json_encode(['jobs' => $jobs, 'seconds' => $seconds, 'began_us' => $began]), "\n";
    }

    /** Be one caller: say that it is ready, wait for the start, and say how many jobs it sent. */
    private function obey(int $caller, $pipe): void
    {
        $queue = queues()->getConnection();
        // PHP reads the sources of a class at its first use. That belongs to no job.
        Database::connection()->beginTransaction();
        $queue->push($this->noop(0));
        Database::connection()->rollBack();
        fwrite($pipe, "ready\n");
        $began = (int) fgets($pipe);
        $sent = 0;
        for ($turn = 0; ; $turn++) {
            $start = ($turn * $this->callers + $caller) * $this->batch;
            if ($start >= $this->jobs || now_us() - $began >= $this->seconds * 1e6) {
                break;
            }
            $places = range($start, min($start + $this->batch, $this->jobs) - 1);
            if ($this->batch > 1) {
                $queue->bulk(array_map($this->noop(...), $places));
            } elseif ($this->due === 0) {
                $queue->push($this->noop($start));
            } else {
                // Due times have whole seconds. They are rounded up, because no job may start early.
                $hash = ($start * 2654435761) & 0xffffffff;
                $due_us = $this->due + intdiv($hash * $this->within, 1 << 32);
                $queue->later(new DateTimeImmutable('@' . (int) ceil($due_us / 1e6)), $this->noop($start));
            }
            $sent += count($places);
        }
        fwrite($pipe, "$sent\n");
    }

    private function noop(int $place): Noop
    {
        return new Noop($this->first + $place, $this->pad);
    }
}

function work(): void
{
    $queues = queues()->getQueueManager();
    $events = Container::getInstance()->make(EventsContract::class);
    $options = new WorkerOptions();
    $options->sleep = POLL;
    (new Worker($queues, $events, new Report(), fn () => false))->daemon('default', 'noop', $options);
}

match ($argv[1] ?? '') {
    'prepare' => prepare(),
    'enqueue' => (new Load())->enqueue(),
    'work' => work(),
    default => throw new RuntimeException("unknown command: there are prepare, enqueue and work"),
};
