package org.millrace.beam;

import org.apache.beam.fn.harness.ExternalWorkerService;
import org.apache.beam.sdk.options.PipelineOptions;
import org.apache.beam.sdk.options.PortablePipelineOptions;
import org.apache.beam.sdk.util.construction.Environments;

/**
 * Java's steps in the process that builds the pipeline, also where transforms of another language are expanded.
 *
 * <p>Beam's runner starts the workers of {@code --defaultEnvironmentType=LOOPBACK} when the pipeline runs, and an expansion
 * wants their address before.
 */
final class Loopback {

  private Loopback() {}

  /** Starts the workers, if the options ask for them, and says in the options where they are. */
  static void start(PipelineOptions options) throws Exception {
    PortablePipelineOptions portable = options.as(PortablePipelineOptions.class);
    if (!Environments.ENVIRONMENT_LOOPBACK.equals(portable.getDefaultEnvironmentType())) {
      return;
    }
    String address = new ExternalWorkerService(options).start().getApiServiceDescriptor().getUrl();
    portable.setDefaultEnvironmentType(Environments.ENVIRONMENT_EXTERNAL);
    portable.setDefaultEnvironmentConfig(address);
  }
}
