<?php

declare(strict_types=1);

namespace Tickr\Laravel\Console;

use Illuminate\Console\Command;
use Illuminate\Contracts\Debug\ExceptionHandler;
use Illuminate\Queue\Events\JobFailed;
use Illuminate\Queue\Events\JobProcessed;
use Illuminate\Queue\Events\JobProcessing;
use Illuminate\Queue\WorkerOptions;
use Tickr\Context;
use Tickr\Failed;
use Tickr\Laravel\LaravelWorker;
use Tickr\Laravel\TickrJob;
use Tickr\Laravel\TickrQueue;
use Tickr\Rejected;
use Tickr\Worker;
use Tickr\Worker\ChildContext;
use Tickr\Worker\Settings;

/** Executes jobs, each slot in a process of its own. */
class WorkCommand extends Command
{
    protected $signature = 'tickr:work
        {connection=tickr : The queue connection}
        {--queue= : The queues to serve, with commas between them}
        {--slots=4 : The number of processes that execute jobs}
        {--name=laravel : The name of the worker, for operators}
        {--backoff=0 : The seconds to wait after an exception, for jobs that do not say}
        {--tries=1 : The attempts of a job that does not say}
        {--timeout=60 : The seconds that a job may run, for jobs that do not say}
        {--memory=128 : The megabytes after which a process is replaced}
        {--max-jobs=0 : The jobs after which a process is replaced}
        {--grace=30 : The seconds after SIGTERM in which running jobs may finish}
        {--kill=5 : The seconds after which the process of a cancelled job is killed}
        {--lease=60 : The seconds without a heartbeat after which other workers take the jobs}
        {--force : Work also in maintenance mode}';

    protected $description = 'Execute the jobs of tickr';

    public function handle(): int
    {
        $connection = (string) $this->argument('connection');
        $queue = $this->laravel->make('queue')->connection($connection);
        if (!$queue instanceof TickrQueue) {
            $this->error("The queue connection \"$connection\" does not have the driver tickr.");
            return 1;
        }
        $queues = $this->option('queue') ?: $queue->getQueue(null);
        $settings = new Settings(
            name: (string) $this->option('name'),
            queues: array_map('trim', explode(',', $queues)),
            slots: (int) $this->option('slots'),
            leaseMs: (int) $this->option('lease') * 1000,
            graceMs: (int) $this->option('grace') * 1000,
            killMs: (int) $this->option('kill') * 1000,
            waitMs: 10_000,
            maxJobs: (int) $this->option('max-jobs'),
        );
        $options = new WorkerOptions(
            name: (string) $this->option('name'),
            backoff: (int) $this->option('backoff'),
            memory: (int) $this->option('memory'),
            timeout: (int) $this->option('timeout'),
            maxTries: (int) $this->option('tries'),
        );
        $this->listenForJobs();
        $laravel = $this->laravelWorker();
        $worker = new Worker($queue->workClient(), $settings);
        $worker->logTo(fn (string $line) => $this->output->writeln("<comment>$line</comment>"));
        $handler = function (mixed $payload, Context $context) use ($laravel, $connection, $options): mixed {
            \assert($context instanceof ChildContext);
            return $this->executeJob($laravel, $context, $connection, $options);
        };
        $worker->handle($queue->kind(), $handler);
        $worker->onProcessStart($this->forgetConnections(...));
        $started = $this->lastRestart();
        $worker->stopWhen(fn (): bool => $this->lastRestart() !== $started, alsoIdle: true);
        $worker->replaceProcessWhen(fn (): bool => $laravel->memoryExceeded($options->memory));
        if (!$this->option('force')) {
            $worker->pauseWhile(fn (): bool => $this->laravel->isDownForMaintenance());
        }
        $this->forgetConnections();
        return $worker->run();
    }

    private function executeJob(
        LaravelWorker $worker,
        ChildContext $context,
        string $connection,
        WorkerOptions $options,
    ): mixed {
        $end = null;
        $finish = static function (array $given) use (&$end): void {
            $end = $given;
        };
        $job = new TickrJob($this->laravel, $context->attempt, $connection, $context->attempt->queue, $finish);
        $worker->runOne($job, $connection, $options, static function () use (&$end, $context): void {
            $context->end($end ?? ['verdict' => 'failed', 'error' => 'the time of the job was over']);
        });
        return match ($end['verdict'] ?? '') {
            'succeeded' => null,
            'rejected' => throw new Rejected($end['error']),
            'failed' => throw new Failed($end['error'], $end['delay_ms'] ?? null),
            default => throw new Failed('the job ended without an answer of Laravel'),
        };
    }

    private function laravelWorker(): LaravelWorker
    {
        $app = $this->laravel;
        $resetScope = static function () use ($app): void {
            if (method_exists($app, 'forgetScopedInstances')) {
                $app->forgetScopedInstances();
            }
        };
        $worker = new LaravelWorker(
            $app->make('queue'),
            $app->make('events'),
            $app->make(ExceptionHandler::class),
            static fn (): bool => false,
            $resetScope,
        );
        if ($app->bound('cache')) {
            // It counts the exceptions of jobs with `$maxExceptions`.
            $worker->setCache($app->make('cache')->driver());
        }
        return $worker;
    }

    /** Show what happens to the jobs, and keep the failed ones where `queue:failed` looks. */
    private function listenForJobs(): void
    {
        $show = function (string $word, TickrJob $job): void {
            $this->output->writeln(date('Y-m-d H:i:s') . " [{$job->getJobId()}] $word " . $job->resolveName());
        };
        $listen = function (string $event, \Closure $do): void {
            $this->laravel->make('events')->listen($event, static function ($event) use ($do): void {
                if ($event->job instanceof TickrJob) {
                    $do($event);
                }
            });
        };
        $listen(JobProcessing::class, static fn ($event) => $show('Processing', $event->job));
        $listen(JobProcessed::class, static fn ($event) => $show('Processed', $event->job));
        $listen(JobFailed::class, function ($event) use ($show): void {
            $show('Failed', $event->job);
            $this->laravel->make('queue.failer')->log(
                $event->connectionName,
                $event->job->getQueue(),
                $event->job->getRawBody(),
                $event->exception,
            );
        });
    }

    /** Two processes must not share one connection, so every process opens its own. */
    private function forgetConnections(): void
    {
        if ($this->laravel->resolved('db')) {
            foreach ($this->laravel->make('db')->getConnections() as $connection) {
                $connection->disconnect();
            }
        }
        if ($this->laravel->resolved('redis')) {
            foreach (array_keys((array) $this->laravel->make('redis')->connections()) as $name) {
                $this->laravel->make('redis')->purge($name);
            }
        }
    }

    /** The moment of the last `queue:restart`. */
    private function lastRestart(): mixed
    {
        return $this->laravel->bound('cache') ? $this->laravel->make('cache')->get('illuminate:queue:restart') : null;
    }
}
