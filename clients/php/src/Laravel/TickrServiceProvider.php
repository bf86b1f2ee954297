<?php

declare(strict_types=1);

namespace Tickr\Laravel;

use Illuminate\Queue\Events\JobExceptionOccurred;
use Illuminate\Support\ServiceProvider;
use Tickr\Laravel\Console\DeclareCommand;
use Tickr\Laravel\Console\WorkCommand;

/** Adds the queue driver `tickr` and the commands `tickr:work` and `tickr:declare`. */
class TickrServiceProvider extends ServiceProvider
{
    public function register(): void
    {
        $config = $this->app->make('config');
        $config->set('queue.connections.tickr', array_merge([
            'driver' => 'tickr',
            'url' => env('TICKR_URL', 'http://127.0.0.1:7070'),
            'token' => env('TICKR_TOKEN'),
            'work_token' => env('TICKR_WORK_TOKEN'),
            'queue' => env('TICKR_QUEUE', 'laravel'),
            'kind' => 'laravel',
        ], $config->get('queue.connections.tickr', [])));
        $this->callAfterResolving('queue', function ($manager): void {
            $manager->addConnector('tickr', fn () => new TickrConnector($this->app));
        });
    }

    public function boot(): void
    {
        // The error of an attempt is the exception, and Laravel names it only in this event.
        $this->app->make('events')->listen(JobExceptionOccurred::class, static function ($event): void {
            if ($event->job instanceof TickrJob) {
                $event->job->blame($event->exception);
            }
        });
        if ($this->app->runningInConsole()) {
            $this->commands([WorkCommand::class, DeclareCommand::class]);
        }
    }
}
