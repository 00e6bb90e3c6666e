package org.millrace.beam;

import org.apache.beam.sdk.Pipeline;
import org.apache.beam.sdk.PipelineResult;
import org.apache.beam.sdk.io.TextIO;
import org.apache.beam.sdk.options.Default;
import org.apache.beam.sdk.options.Description;
import org.apache.beam.sdk.options.PipelineOptions;
import org.apache.beam.sdk.options.PipelineOptionsFactory;
import org.apache.beam.sdk.options.Validation;
import org.apache.beam.sdk.schemas.Schema;
import org.apache.beam.sdk.transforms.MapElements;
import org.apache.beam.sdk.values.Row;
import org.apache.beam.sdk.values.TypeDescriptors;

/** Questions from text files, a line each, answered to text files: {@code question<tab>answer}. */
public final class Example {

  private static final Schema QUESTION = Schema.builder().addStringField("question").build();

  /** What the example is told. */
  public interface Options extends PipelineOptions {
    @Description("Files of questions.")
    @Validation.Required
    String getInput();

    void setInput(String value);

    @Description("The beginning of the answers' paths.")
    @Validation.Required
    String getOutput();

    void setOutput(String value);

    @Description("A hub name, a folder, gs://bucket/folder, or the model that comes along.")
    @Default.String("millrace-tiny")
    String getModel();

    void setModel(String value);

    @Description("host:port of `millrace expansion`.")
    @Default.String("localhost:8097")
    String getExpansionService();

    void setExpansionService(String value);
  }

  private Example() {}

  public static void main(String[] arguments) throws Exception {
    Options options = PipelineOptionsFactory.fromArgs(arguments).withValidation().as(Options.class);
    Loopback.start(options);
    Pipeline pipeline = Pipeline.create(options);
    pipeline
        .apply("Read", TextIO.read().from(options.getInput()))
        .apply("Questions", MapElements.into(TypeDescriptors.rows()).via(Example::question))
        .setRowSchema(QUESTION)
        .apply(
            "Generate",
            Generate.of(options.getModel(), options.getExpansionService())
                .withPromptField("question")
                .withSampling("max_tokens", 32L))
        .apply("Answers", MapElements.into(TypeDescriptors.strings()).via(Example::answer))
        .apply("Write", TextIO.write().to(options.getOutput()));
    System.exit(pipeline.run().waitUntilFinish() == PipelineResult.State.DONE ? 0 : 1);
  }

  private static Row question(String line) {
    return Row.withSchema(QUESTION).addValue(line).build();
  }

  private static String answer(Row row) {
    return row.getString("question") + "\t" + row.getRow("completion").getString("text");
  }
}
